"""The learner: the LightningModule that activates a bank and computes its loss and scores."""

from continual_petl.learner.learner import ContinualLearner as ContinualLearner
from continual_petl.learner.plan import TaskPlan as TaskPlan
