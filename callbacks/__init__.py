"""Callbacks that observe a run without changing it."""

from continual_petl.callbacks.base import StreamCallback as StreamCallback
from continual_petl.callbacks.base import TaskEvent as TaskEvent
from continual_petl.callbacks.dashboard import Dashboard as Dashboard
from continual_petl.callbacks.event_lines import EventLines as EventLines
from continual_petl.callbacks.live import LiveProgress as LiveProgress
from continual_petl.callbacks.no_forgetting import NoForgetting as NoForgetting
from continual_petl.callbacks.parameter_growth import ParameterGrowth as ParameterGrowth
from continual_petl.callbacks.progress import Progress as Progress
from continual_petl.callbacks.routing_watch import RoutingWatch as RoutingWatch
