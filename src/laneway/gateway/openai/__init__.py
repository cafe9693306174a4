"""OpenAI's shapes over a gateway: chat completions, responses and models, so that clients made for them can talk to it.

A model is an agent: `laneway` is that of the default workspace, `laneway/<workspace>` that of another. With a session
key (header `Laneway-Session`, else `conversation`, else `user`) only the newest message of the user is submitted, to
that session, which knows the rest. Without one the request is a session of its own, and what came before the newest
message is told to the agent as a transcript, with the instructions at its head.
"""
