"""`laneway serve`: the server. What it is asked for becomes settings; the gateway does the rest."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from laneway.errors import ConfigError

__all__ = ("serve",)


Host = Annotated[
    str | None,
    typer.Option(help="The address to listen on. Default: 127.0.0.1.", envvar="LANEWAY_HOST", metavar="HOST"),
]
Port = Annotated[
    int | None,
    typer.Option(
        help="The port; 0 picks a free one. Default: 8420.", envvar="LANEWAY_PORT", metavar="PORT", min=0, max=65535
    ),
]
StoreAddress = Annotated[
    str | None,
    typer.Option(
        help="Where everything is kept. Default: sqlite:///laneway.db.", envvar="LANEWAY_STORE", metavar="ADDRESS"
    ),
]
MainFile = Annotated[str | None, typer.Option(help="The main file.", envvar="LANEWAY_CONFIG", metavar="FILE")]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="The model of every agent: scripted, or a provider and a model such as openai/gpt-5.",
        envvar="LANEWAY_MODEL",
        metavar="NAME",
    ),
]
Workspaces = Annotated[
    list[str] | None,
    typer.Option(
        "--workspace",
        help="A folder with its agent.yaml, agent.hcl or agent.toml; may be given more than once. "
        "Default: those of the main file, or the current folder.",
        envvar="LANEWAY_WORKSPACE",
        metavar="DIR",
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(help="The lines on standard error: console or json.", envvar="LANEWAY_LOG_FORMAT", metavar="F"),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        help="From which level on: debug, info, warning, error. Default: warning.",
        envvar="LANEWAY_LOG_LEVEL",
        metavar="LEVEL",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="The same as --log-level debug.", envvar="LANEWAY_VERBOSE")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Set a value of the configuration: gateway.drain_ms=60000.",
        envvar="LANEWAY_SET",
        metavar="KEY=VALUE",
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    store: StoreAddress = None,
    config: MainFile = None,
    model: ModelName = None,
    workspaces: Workspaces = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    verbose: Verbose = False,
    overrides: Overrides = None,
) -> None:
    """Take messages for many sessions over HTTP and run agents for them.

    Prints its address on standard output when it is ready, and nothing else there. SIGTERM or Ctrl-C stops it: runs
    have some time to end, the rest goes on with the next start.
    """
    try:
        from laneway.gateway import server
        from laneway.gateway.launch import ServeOptions, prepare
    except ModuleNotFoundError as error:
        if (error.name or "laneway").partition(".")[0] == "laneway":
            raise
        raise ConfigError(
            f"the server needs {error.name}", setting="serve", hint="install laneway with the extra `gateway`"
        ) from None
    flags = {
        "host": host,
        "port": port,
        "store": store,
        "log_format": log_format,
        "log_level": "debug" if verbose else log_level,
    }
    given = [f"gateway.{name}={value}" for name, value in flags.items() if value is not None]
    options = ServeOptions(
        config=config, workspaces=workspaces or (), model=model, overrides=[*(overrides or ()), *given]
    )
    server.run(prepare(options, os.environ))
