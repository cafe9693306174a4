"""The shapes of OpenAI on the gateway."""
