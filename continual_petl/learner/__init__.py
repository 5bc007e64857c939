"""The learner: the LightningModule that activates a bank and computes its loss and metrics."""
