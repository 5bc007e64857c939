"""The settings of a task chosen on its validation split: size x learning rate x epochs, as Houlsby et al. 2019 did.

Section 3.1 and 3.2 of https://arxiv.org/abs/1902.00751: a grid of settings for each task, the best on validation is learned
anew with several seeds, and nothing is decided by a test split.
"""

from continual_petl.sweep.protocol import sweep as sweep
from continual_petl.sweep.result import SweepResult as SweepResult
from continual_petl.sweep.spec import Range as Range
from continual_petl.sweep.spec import SweepSpec as SweepSpec
from continual_petl.sweep.sweep_file import load_sweep as load_sweep
