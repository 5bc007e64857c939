"""Callbacks observe without changing anything.

`base` has the hooks; `no_forgetting` watches what must not change in a fit; `progress`, `live` and
`event_lines` show progress;
`loggers` sends numbers to W&B and others; `watches` has those that watch costs and the router.
"""

from continual_petl.callbacks.base import StreamCallback as StreamCallback
from continual_petl.callbacks.base import WatchedRun as WatchedRun
from continual_petl.callbacks.base import WatchedTask as WatchedTask
from continual_petl.callbacks.event_lines import EventLines as EventLines
from continual_petl.callbacks.live import LiveProgress as LiveProgress
from continual_petl.callbacks.loggers import Loggers as Loggers
from continual_petl.callbacks.no_forgetting import NoForgetting as NoForgetting
from continual_petl.callbacks.progress import Progress as Progress
from continual_petl.callbacks.watches import ParameterGrowth as ParameterGrowth
from continual_petl.callbacks.watches import RoutingWatch as RoutingWatch
