"""`beadline transactions`: a Kafka cluster's open transactions, whom they hold up, ending them.

Readers with `read_committed` cannot read past an open transaction until it is ended. A running
query ends its own, and after a crash its next start does; these commands are for when the next
start is not soon, and for finding out whether it is Beadline that holds a reader up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from beadline.cli.output import JsonOption, output

transactions = typer.Typer(no_args_is_help=True)

ServersOption = Annotated[
    str, typer.Option("--bootstrap-servers", metavar="HOST:PORT,...", help="The brokers.")
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(help="The query's checkpoint, a path or a URI: its log says what was decided."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="A setting of librdkafka, as in KafkaSink(options=); may be repeated. Other users of "
        "this machine can see command lines: passwords belong in --options-file.",
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--options-file", help="A file of such settings, KEY=VALUE lines; # comments."),
]
ControlTopicOption = Annotated[
    str | None,
    typer.Option(help="The topic of the query's markers, if it is not beadline-QUERY."),
]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids.")]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="End it even if no decision log vouches for it (not Beadline's, or no --checkpoint), "
        "if the log contradicts it, so that rows appear twice or are missing, or if a process "
        "that seems to run the query is alive.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@transactions.callback()
def _root() -> None:
    """Show Kafka's open transactions and whom they hold up; commit or abort them by hand."""


@transactions.command("list")
def list_(
    bootstrap_servers: ServersOption,
    query: Annotated[str | None, typer.Option(help="Only transactions of this query.")] = None,
    checkpoint: CheckpointOption = None,
    option: SettingsOption = None,
    options_file: FileOption = None,
    control_topic: ControlTopicOption = None,
    everybodys: Annotated[
        bool,
        typer.Option(
            "--all", help="With --query or --checkpoint: also those of other applications."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show open transactions, oldest first. Changes nothing.

    With --query or --checkpoint those of one query, otherwise those of the whole cluster: any of
    them may hold a reader up. With --checkpoint, the decision log says what the next start will
    do with each.
    """
    from beadline.cli._transactions import asking, show_open

    out = output(json)
    with asking(bootstrap_servers, option, options_file, checkpoint, control_topic) as cluster:
        show_open(cluster, query, everybodys, out)


_COMMIT_HELP = """Commit transactions that the newest decision names. Stop the query first.

The next start of the query would do the same. Whether the query is running cannot be known from
here, unless it runs on this machine or writes to its log meanwhile: make sure yourself.
"""
_ABORT_HELP = """Abort transactions that the newest decision does not name. Stop the query first.

The next start of the query would do the same. A driver that is still running may decide a
transaction right after the log was read here, and its rows would then be missing: make sure that
none is running. A producer that is still alive is fenced.
"""


def _ending(command: Literal["commit", "abort"], words: str) -> None:
    """Register one of the two commands that end transactions; their options are the same."""

    @transactions.command(command, help=words)
    def end(
        ids: IdsArgument,
        bootstrap_servers: ServersOption,
        checkpoint: CheckpointOption = None,
        option: SettingsOption = None,
        options_file: FileOption = None,
        control_topic: ControlTopicOption = None,
        force: ForceOption = False,
        yes: YesOption = False,
        json: JsonOption = False,
    ) -> None:
        from beadline.cli._transactions import asking, end_all

        out = output(json)
        with asking(bootstrap_servers, option, options_file, checkpoint, control_topic) as cluster:
            end_all(command, ids, cluster, out, force, yes, json)


_ending("commit", _COMMIT_HELP)
_ending("abort", _ABORT_HELP)
