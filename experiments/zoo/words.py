"""The text of README of this study that does not depend on results."""

from __future__ import annotations

ADAPTED = {"all": "all weights"}
"""What a method's name says if it does not train a LoRA."""
PROTOCOLS = {
    "task": "the task of a row is known",
    "class": "the task of a row is not known",
    "domain": "the same classes in every task",
}
INTRODUCTION = """# Other methods on the same rows

Methods against forgetting from Avalanche, and classifiers in closed form on frozen states, learn the same streams as the
banks of this package: the same backbone (MiniLM, frozen except for a LoRA of rank 8 in queries and values, unless a table
says otherwise), the same tokens, the same epochs, batch size and number of trials to choose settings.

```bash
python -m experiments.zoo environment          # once: the environment in which avalanche-lib runs
python -m experiments.zoo --data FOLDER        # learns all streams with all methods, and writes the raw results
python -m experiments.zoo STREAM.yaml --methods er,ewc,lwf    # a stream of your own
python -m experiments.zoo pages                # regenerates this page and its part of the main README
```

* Methods of Avalanche run unmodified in an environment of their own (`avalanche_strategies.py`), on one model with one
  head.
* Classifiers in closed form (`closed.py`) read the mean states of rows in layers 2, 4 and 6 of the frozen backbone, which
  the router reads too. They keep sums, no rows, and need no optimizer. SLDA from Avalanche reads the last layer.
* Banks: one LoRA or one set of Houlsby adapters for each task. If the task of a row is not known, the router finds it.
* Banks are learned as this package does by default: the learning rate rises and falls, gradients are clipped, and the best
  epoch on validation rows is kept. Methods of Avalanche have a constant learning rate and keep the last step, as they are
  without further settings. This is an advantage of the banks that has nothing to do with forgetting.
* Full copies and joint training on the classic five tasks are results of `experiments/continual`, on the same rows."""
READING = """* ACC: mean accuracy on all tasks after the last one. BWT: mean change of a task's accuracy since it was
  learned. Forgetting: its best accuracy since then minus the last one (Chaudhry et al. 2018). All in points: mean and
  standard error over seeds, where a seed's value is the mean over its orders.
* If the task of a row is not known, a prediction has to be right among the classes of all tasks learned so far. More of
  them make every method worse, so forgetting is above 0 for banks too: rows go to other tasks; no bank changes.
* FWT, in the form that measures plasticity: accuracy right after a task was learned minus that of a LoRA bank for the
  task alone, from the second task on; only for methods that train a LoRA, with the task known. GEM's FWT needs the
  accuracy on a task before it is learned, when its classes are unknown, so it is not defined here.
* Average incremental accuracy: mean of the accuracy on the tasks so far, over all steps (Rebuffi et al. 2017).
* Seconds: learning all tasks, without measuring; for classifiers in closed form, the pass through the backbone is
  included. Other programs used the same two cores, so seconds are upper bounds and differ by chance, too.
* Trained parameters: those of all tasks together; for classifiers in closed form, the values that are solved for.
* MB kept: what has to be stored for later tasks besides the model (old rows, old models, statistics), at four bytes a
  number or token; for banks, their files, with routing statistics if the task is not known. Random projections can be
  drawn again from their seed and do not count.
* Old rows: number of rows of earlier tasks that are kept at the end."""
TRIALS = """Settings are chosen by the accuracy on validation rows after learning the first two tasks of the first order,
with at most 250 training rows each. `strength` is the setting in brackets after a method's name."""
NOT_RUN = """* L2P, DualPrompt, CODA-Prompt and SLCA exist for image transformers only: their authors' code and its
  copies in libraries build on particular image models, so running them on texts would be a new implementation, not
  theirs.
* RanPAC, FeCAM and AnaCP without the training in the first task that their authors add for images (AdaptFormer and
  others): the states are those of the frozen backbone for all classifiers.
* Methods that generate old texts (LAMOL, LFPT5) need a decoder.
* Methods, streams, orders and seeds that are not measured yet only wait for computing time: the command above learns them,
  and adds them to the results."""
