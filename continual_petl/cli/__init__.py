"""The command line, and what a command of an installed package needs."""

from continual_petl.cli.shared_options import add_json as add_json
from continual_petl.cli.shared_options import add_overrides as add_overrides
from continual_petl.cli.shared_options import add_remote_code as add_remote_code
from continual_petl.cli.shared_options import add_run as add_run
from continual_petl.cli.shared_options import add_task as add_task
from continual_petl.cli.shared_options import add_wait as add_wait
from continual_petl.cli.shared_options import check_given as check_given
