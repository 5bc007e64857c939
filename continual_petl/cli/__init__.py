"""The command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.cli.shared_options import add_json as add_json
    from continual_petl.cli.shared_options import add_overrides as add_overrides
    from continual_petl.cli.shared_options import add_remote_code as add_remote_code
    from continual_petl.cli.shared_options import add_run as add_run
    from continual_petl.cli.shared_options import add_task as add_task
    from continual_petl.cli.shared_options import add_wait as add_wait
    from continual_petl.cli.shared_options import check_given as check_given

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "add_json": "continual_petl.cli.shared_options",
        "add_overrides": "continual_petl.cli.shared_options",
        "add_remote_code": "continual_petl.cli.shared_options",
        "add_run": "continual_petl.cli.shared_options",
        "add_task": "continual_petl.cli.shared_options",
        "add_wait": "continual_petl.cli.shared_options",
        "check_given": "continual_petl.cli.shared_options",
    },
)
