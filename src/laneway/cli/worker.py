"""`laneway worker`: a process that does external tasks of a server, on this machine or any other."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from laneway.cli.client import URL
from laneway.cli.credentials import token_of
from laneway.cli.reach import Asking
from laneway.cli.workers_list import ls, show

__all__ = ("worker_app",)

WHO: Final = "Server"
WHAT: Final = "Tasks"
WHERE: Final = "Workspace"
HOLD: Final = "Limits"

worker_app = typer.Typer(invoke_without_command=True)

Connect = Annotated[
    str, typer.Option("--connect", envvar="LANEWAY_URL", help="The server.", rich_help_panel=WHO, metavar="URL")
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="LANEWAY_TOKEN",
        help="A token with the scope worker. '-' asks for it, or reads a line of standard input; others can see what "
        "is written here.",
        rich_help_panel=WHO,
        metavar="TOKEN",
        show_default=False,
    ),
]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar="LANEWAY_TOKEN_FILE",
        help="A file with the token, which nobody else may read.",
        rich_help_panel=WHO,
        metavar="FILE",
        show_default=False,
    ),
]
Tenant = Annotated[
    str,
    typer.Option(
        "--tenant",
        envvar="LANEWAY_TENANT",
        help="Whose tasks, if the token is for all; else those of all.",
        rich_help_panel=WHO,
        metavar="NAME",
        show_default=False,
    ),
]
Authority = Annotated[
    str,
    typer.Option(
        "--ca",
        envvar="LANEWAY_CA",
        help="The file of the authority that has signed the certificate of the server.",
        rich_help_panel=WHO,
        metavar="FILE",
        show_default=False,
    ),
]
Certificate = Annotated[
    str,
    typer.Option(
        "--cert",
        envvar="LANEWAY_CERT",
        help="A certificate of this worker's own, where the server asks for one.",
        rich_help_panel=WHO,
        metavar="FILE",
        show_default=False,
    ),
]
Key = Annotated[
    str,
    typer.Option(
        "--key",
        envvar="LANEWAY_KEY",
        help="Its private key.",
        rich_help_panel=WHO,
        metavar="FILE",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        envvar="LANEWAY_WORKER_NAME",
        help="What it is called. Default: the name of the machine and the number of the process.",
        rich_help_panel=WHAT,
        metavar="NAME",
    ),
]
Lanes = Annotated[
    list[str] | None,
    typer.Option(
        "--lanes",
        envvar="LANEWAY_WORKER_LANES",
        help="Only tasks of these lanes: execute,query. Default: all.",
        rich_help_panel=WHAT,
        metavar="LANES",
    ),
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        "--concurrency",
        envvar="LANEWAY_WORKER_CONCURRENCY",
        help="How many tasks at once: 8, or for each lane execute=2,query=8. Default: 4.",
        rich_help_panel=WHAT,
        metavar="N",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        envvar="LANEWAY_WORKER_LABEL",
        help="What this worker has, such as gpu or os=linux; may be given more than once.",
        rich_help_panel=WHAT,
        metavar="LABEL",
    ),
]
Serve = Annotated[
    list[str] | None,
    typer.Option(
        "--serve",
        envvar="LANEWAY_WORKER_SERVE",
        help="Only tasks of this workspace of the server, by its name; may be given more than once.",
        rich_help_panel=WHAT,
        metavar="NAME",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        envvar="LANEWAY_WORKER_ALLOW",
        help="Only these command types: bash,read. Default: all that it can do.",
        rich_help_panel=WHAT,
        metavar="TOOLS",
    ),
]
Handlers = Annotated[
    str,
    typer.Option(
        "--handlers",
        envvar="LANEWAY_WORKER_HANDLERS",
        help="Functions of your own that do tasks: a module or a .py file, and after a colon the name of a Worker, "
        "of a dict of handlers or of a list of tools in it.",
        rich_help_panel=WHAT,
        metavar="MODULE[:NAME]",
        show_default=False,
    ),
]
BuiltIn = Annotated[
    bool,
    typer.Option(
        "--builtin-tools",
        envvar="LANEWAY_WORKER_BUILTIN_TOOLS",
        help="Have the built-in tools beside a dict or a list of --handlers.",
        rich_help_panel=WHAT,
    ),
]
LeaseMs = Annotated[
    int | None,
    typer.Option(
        "--lease-ms",
        envvar="LANEWAY_WORKER_LEASE_MS",
        help="How long it would like to be allowed to be silent.",
        rich_help_panel=WHAT,
        metavar="MS",
        min=1_000,
        max=3_600_000,
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        envvar="LANEWAY_WORKSPACE",
        help="The folder that tools work in. Default: the current one; with --map: none.",
        rich_help_panel=WHERE,
        metavar="DIR",
    ),
]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        envvar="LANEWAY_WORKER_MAP",
        help="A folder of the server, or the name of a workspace, and the folder here that stands for it; may be given "
        "more than once.",
        rich_help_panel=WHERE,
        metavar="THERE=HERE",
    ),
]
InSandbox = Annotated[
    bool | None,
    typer.Option(
        "--sandbox/--no-sandbox",
        envvar="LANEWAY_WORKER_SANDBOX",
        help="Run commands in a sandbox of bubblewrap: only the workspace can be written, no network.",
        rich_help_panel=HOLD,
    ),
]
SandboxNetwork = Annotated[
    bool,
    typer.Option(
        "--sandbox-network",
        envvar="LANEWAY_WORKER_SANDBOX_NETWORK",
        help="Let commands in the sandbox reach the network.",
        rich_help_panel=HOLD,
    ),
]
MemoryMb = Annotated[
    int | None,
    typer.Option(
        "--memory-mb",
        envvar="LANEWAY_WORKER_MEMORY_MB",
        help="Memory that each process of a command may have.",
        rich_help_panel=HOLD,
        metavar="MB",
        min=1,
    ),
]
CpuS = Annotated[
    int | None,
    typer.Option(
        "--cpu-s",
        envvar="LANEWAY_WORKER_CPU_S",
        help="Processor time that each process of a command may use.",
        rich_help_panel=HOLD,
        metavar="S",
        min=1,
    ),
]
OpenFiles = Annotated[
    int | None,
    typer.Option(
        "--open-files",
        envvar="LANEWAY_WORKER_OPEN_FILES",
        help="Files that each process of a command may have open.",
        rich_help_panel=HOLD,
        metavar="N",
        min=1,
    ),
]
FileMb = Annotated[
    int | None,
    typer.Option(
        "--file-mb",
        envvar="LANEWAY_WORKER_FILE_MB",
        help="How large a file may be that a command writes.",
        rich_help_panel=HOLD,
        metavar="MB",
        min=1,
    ),
]
DrainMs = Annotated[
    int,
    typer.Option(
        "--drain-ms",
        envvar="LANEWAY_WORKER_DRAIN_MS",
        help="How long tasks may go on after a signal, before they are stopped and given back.",
        rich_help_panel=HOLD,
        metavar="MS",
        min=0,
        max=86_400_000,
    ),
]
Level = Annotated[
    str,
    typer.Option(
        "--log-level",
        envvar="LANEWAY_LOG_LEVEL",
        help="From which level on: debug, info, warning, error.",
        metavar="LEVEL",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", envvar="LANEWAY_WORKER_QUIET", help="Only warnings, and no progress bars.")
]
Json = Annotated[
    bool, typer.Option("--json", envvar="LANEWAY_WORKER_JSON", help="Write lines of JSON, and no progress bars.")
]


@worker_app.callback()
def run(
    ctx: typer.Context,
    connect: Connect = URL,
    token: Token = "",
    token_file: TokenFile = "",
    tenant: Tenant = "",
    ca: Authority = "",
    cert: Certificate = "",
    key: Key = "",
    name: Name = None,
    lanes: Lanes = None,
    concurrency: Concurrency = None,
    labels: Labels = None,
    serve: Serve = None,
    allow: Allow = None,
    handlers: Handlers = "",
    builtin_tools: BuiltIn = False,
    lease_ms: LeaseMs = None,
    workspace: Workspace = None,
    maps: Maps = None,
    sandbox: InSandbox = None,
    sandbox_network: SandboxNetwork = False,
    memory_mb: MemoryMb = None,
    cpu_s: CpuS = None,
    open_files: OpenFiles = None,
    file_mb: FileMb = None,
    drain_ms: DrainMs = 30_000,
    log_level: Level = "info",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Take external tasks of a server and do them here. `ls` lists the workers of a server.

    Prints one line on standard output when the server has answered, and nothing else there. SIGTERM or Ctrl-C stops
    it: it takes nothing more, gives back what it has not begun and finishes the rest; a second signal stops at once.
    """
    if ctx.invoked_subcommand is not None:
        return
    from laneway.cli.worker_run import Choice, Limits, Reach, run_worker  # `worker ls` needs none of it

    given = {
        each: (value, getattr(ctx.get_parameter_source(each), "name", "") == "COMMANDLINE")
        for each, value in (("token", token), ("token_file", token_file))
    }
    reach = Reach(url=connect, token=token_of(given), tenant=tenant, ca=ca, cert=cert, key=key, token_file=token_file)
    limits = Limits(
        sandbox=sandbox,
        network=sandbox_network,
        sizes={"memory_mb": memory_mb, "cpu_s": cpu_s, "open_files": open_files, "file_mb": file_mb},
        drain_ms=drain_ms,
    )
    choice = Choice(
        name=name,
        lanes=lanes or (),
        concurrency=concurrency,
        labels=labels or (),
        serve=serve or (),
        allow=allow or (),
        handlers=handlers,
        builtin_tools=builtin_tools,
        lease_ms=lease_ms,
        workspace=workspace,
        maps=maps or (),
    )
    run_worker(reach, choice, limits, log_level="warning" if quiet else log_level, as_json=as_json, quiet=quiet)


worker_app.command("ls", cls=Asking)(ls)
worker_app.command("show", cls=Asking)(show)
