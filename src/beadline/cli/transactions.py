"""`beadline transactions`: what is open on a Kafka cluster, whom it holds up, and how to end it.

Readers are stuck before an open transaction until it is ended. While a query runs it does so
itself, and after a crash its next start does; these commands are for when there is no next start
soon, and for finding out whether it is Beadline at all that holds a reader up.
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
    typer.Option(help="The query's folder, a path or a URI: its log says what was decided."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="A setting of librdkafka, as in KafkaSink(options=); may be repeated. Others on this "
        "machine can read command lines: passwords belong in --options-file.",
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--options-file", help="The same, KEY=VALUE in each line; # comments")
]
ControlTopicOption = Annotated[
    str | None, typer.Option(help="Where the query's markers are, if not in beadline-QUERY.")
]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID", help="Transactional ids.")]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="End it even if no decision log vouches for it (not Beadline's, or no --checkpoint), "
        "if the log contradicts it, so that rows show twice or are missing, or if a process that "
        "seems to run the query is alive.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@transactions.callback()
def _root() -> None:
    """Show Kafka's open transactions and whom they hold up; commit or abort them by hand."""


@transactions.command("list")
def list_(
    bootstrap_servers: ServersOption,
    query: Annotated[str | None, typer.Option(help="Only those of this query.")] = None,
    checkpoint: CheckpointOption = None,
    option: SettingsOption = None,
    options_file: FileOption = None,
    control_topic: ControlTopicOption = None,
    everybodys: Annotated[
        bool, typer.Option("--all", help="With --query or --checkpoint: other applications' too.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show open transactions, the oldest first. Changes nothing.

    Of one query with --query or --checkpoint, otherwise of the whole cluster: any of them may
    hold a reader up. With --checkpoint, the decision log says what the next start will do with
    each.
    """
    from beadline.cli._transactions import asking, show_open

    out = output(json)
    with asking(bootstrap_servers, option, options_file, checkpoint, control_topic) as cluster:
        show_open(cluster, query, everybodys, out)


_COMMIT_HELP = """Commit transactions that the newest decision names. Stop the query first.

It is what the next start of the query does. Whether the query is running cannot be known from
here, unless it runs on this machine or writes to its log meanwhile: see to it yourself.
"""
_ABORT_HELP = """Abort transactions that the newest decision does not name. Stop the query first.

It is what the next start of the query does. A driver that still runs may decide, the moment
after the log was read, what is then gone: see to it that there is none. A producer that still
lives is fenced.
"""


def _ending(command: Literal["commit", "abort"], words: str) -> None:
    """Add one of the two commands that end transactions; they take the same options."""

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
