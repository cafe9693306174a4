"""The names of OpenTelemetry's conventions that Laneway's spans use, as they were at one version.

The conventions for generative AI are still in development and change; these names change only with this file.
"""

from __future__ import annotations

from typing import Final

__all__ = ()

VERSION: Final = "1.44.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"

ERROR_TYPE: Final = "error.type"

OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_CONVERSATION_ID: Final = "messaging.message.conversation_id"
MESSAGING_BATCH_COUNT: Final = "messaging.batch.message_count"

RUN_ID: Final = "laneway.run.id"
LANE: Final = "laneway.lane"
TENANT: Final = "laneway.tenant"
IDENTITY: Final = "laneway.identity."
"""What the labels of a session begin with."""
COST: Final = "laneway.cost_usd"
DISPOSITION: Final = "laneway.disposition"
QUEUED_MS: Final = "laneway.queued_ms"
