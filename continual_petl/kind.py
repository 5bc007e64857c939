"""What the kind of a task decides.

The kinds of this package are in `continual_petl.kinds`, one file each; `continual_petl.kind_registry` finds kinds by their
names. All other code asks a kind; none compares its name, as `tests/test_kinds.py` checks.

A kind is described and asked here without torch; its file imports what it computes with where it computes.

Shape legend: N rows, B rows of a batch, D width of the backbone, C outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

Options = Literal["task", "row"]
"""Where the options of a task come from: one list for the whole task, or a list for each row."""
MAX_OPTIONS = 1000
NO_ANSWER = -2
"""Marks the token, among the places of a window, whose outputs score that its row has no answer."""
IGNORED = -100
"""The label of positions that loss and scores ignore: padding, special tokens, all but the first piece of a word."""
OF_CLASSES = ("accuracy", "macro_f1", "matthews")
"""Metrics of rows that have one label each."""
OF_ANSWERS = ("calibrate", "thresholds")
"""Keys of ``kind_settings`` that decide how answers are read from outputs, not how rows are encoded; see `Kind.decide`."""


class OwnColumn(NamedTuple):
    """A key of ``columns`` that only some kinds have."""

    default: str | None
    """The column that is read if the key is left out; None: no column."""
    about: str
    """What the column holds, for the JSON Schema."""


class Kind:
    """Everything that a task's kind decides; this base class describes a task with one vector per text."""

    name: str

    # What a stream file may say
    columns: tuple[str, ...] = ("text", "text_pair", "label")
    """The keys of ``columns`` that it reads: the input (and the second text, or the options), then the label or target."""
    own_columns: ClassVar[Mapping[str, OwnColumn]] = {}
    """Those keys that no kind of this package has, or that this kind alone has, described."""
    own_settings: type[BaseModel] | None = None
    """The keys of a task's ``kind_settings``, all with defaults; None if it has none. Their values decide the bank."""
    metrics: tuple[str, ...]
    """Its metrics; the first is the default. Higher is better."""
    trains_with: frozenset[str] = frozenset({"head_dropout"})
    """Those keys of ``training`` that only some kinds use, and this one does."""
    input_name = "text"
    """The word for the input of a row in messages."""

    # What its rows and answers are
    generates = False
    """Whether the answer is a text, generated or chosen among options, by the backbone's own language-modelling head."""
    continues = False
    """Whether the target continues the source in the same row, so that sources are padded on the left."""
    takes_chats = False
    """Whether rows may be conversations."""
    has_labels = False
    """Whether answers are labels with names."""
    labels_in_columns = False
    """Whether each label may have a column of its own, with 0 or 1."""
    has_one_label = False
    """Whether each row has exactly one label."""
    has_numbers = False
    """Whether answers are numbers, which are standardised."""
    per_word = False
    """Whether rows are lists of words, with one answer per word."""
    reads_images = False
    """Whether rows are images."""
    chooses = False
    """Whether each row has options of its own, and the head scores the input together with each of them."""
    several: str | None = None
    """Why a row is read as several sequences, as a clause for messages; None if each row is one sequence."""
    extracts = False
    """Whether the answer is a part of the row's last text, found by the head at each token."""
    always_pairs = False
    """Whether every row has two texts, in its first two columns."""
    output_head: Literal["none", "causal", "seq2seq"] = "none"
    """The head of the backbone that it needs, as in `Anatomy.output_head`."""
    answer_type: Literal["text", "float", "list"] = "text"
    """The type of an answer in a table."""
    details: ClassVar[Mapping[str, str]] = {}
    """What is known of an answer beside it (`Answer.details`), each with its type in a table: text, int or float."""
    summary: Literal["confusion", "points", "per label", "texts"] = "confusion"
    """How predictions of a split are summarised for the report."""

    # What other libraries call it
    auto_class: str | None = None
    """The class of transformers with this kind of head; None if there is none, so that tasks are not exported."""
    formats: tuple[str, ...] = ("merged", "peft", "adapters")
    """The formats of exports that can hold a task, if there is such a class; see `continual_petl.exchange.formats`."""
    problem_type: str | None = None
    """``problem_type`` in that class's configuration."""
    peft_type: str | None = None
    """``task_type`` of `peft`."""
    adapters_head: str | None = None
    """The type of head in `adapters`."""

    @property
    def per_token(self) -> bool:
        """Whether the head reads the state of every token."""
        return self.per_word or self.extracts

    @property
    def pools(self) -> bool:
        """Whether the head reads one vector per row, or per sequence of a row."""
        return not self.generates and not self.per_token

    @property
    def has_one_vector(self) -> bool:
        """Whether the head reads one vector per row."""
        return self.pools and self.several is None

    @property
    def decodes(self) -> bool:
        """Whether a decoder writes the answer to a source that an encoder reads."""
        return self.generates and not self.continues

    @property
    def reads_texts(self) -> bool:
        """Whether a row is a text or a pair of texts, and the answer is computed from its vector."""
        return self.pools and not self.reads_images and self.several is None

    @property
    def encoding(self) -> str:
        """How its rows are encoded: equal for kinds that encode the same row in the same way, whatever it is."""
        return self.name

    @property
    def shares_passes(self) -> bool:
        """Whether its rows can share a pass of the backbone with rows of other tasks."""
        return not self.generates and not self.extracts and self.several is None

    def row_columns(self, *, pair: bool, options: bool) -> tuple[str, ...]:
        """Return the keys of ``columns`` that a row to predict has.

        Args:
            pair: whether a row is a pair of texts.
            options: whether each row has its own options.
        """
        return (*self.columns[: 2 if pair else 1], *(("options",) if options else ()))

    def settings_of(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return all settings of a task of this kind that its bank is learned with; None if there are none.

        Args:
            given: those that differ from the defaults.

        Raises:
            ValueError: if a key or value is not allowed; pydantic's `ValidationError` is one.
        """
        if self.own_settings is None:
            if given is not None:
                raise ValueError(f"kind_settings: a {self.name} task has none: remove it")
            return None
        return self.own_settings.model_validate(given or {}).model_dump(mode="json") or None

    def metrics_with(self, options: Options | None) -> tuple[str, ...]:
        """Return the metrics of a task; the first is the default.

        Args:
            options: where the options of a task come from; None if it has none.
        """
        if options == "row":
            return ("accuracy",)
        return self.metrics if options is None else OF_CLASSES

    def lowest(self, metric: str) -> float:
        """Return the lowest value of one of its metrics, which may be ``-math.inf``."""
        return -1.0 if metric == "matthews" else 0.0

    # Rows as they are read. All these methods raise `InputError`, which names the rows that cannot be used.
    def labels_in(self, task: Any, train: Any, given: tuple[str, ...] | None) -> Iterable[str]:
        """Return all labels of the training rows; only kinds with labels have this method.

        Args:
            task: the `TaskSpec`.
            train: the rows as read, `SplitRows`.
            given: the labels in the stream file, if there are any.
        """
        raise NotImplementedError

    def read_rows(self, task: Any, rows: Any, how: HowRead) -> ReadRows:
        """Return the checked rows of a split.

        Args:
            task: the `TaskSpec`.
            rows: the rows as read, `SplitRows`.
            how: what determines their meaning, beside the task.
        """
        raise NotImplementedError

    def check_splits(
        self, task: Any, splits: Mapping[Any, Any], labels: tuple[str, ...] | None, *, positions: bool
    ) -> None:
        """Check that the splits fit together; ``splits`` are rows as read."""

    def instead_of_one_label(self, label: str) -> str:
        """Return what else to do if all rows have this label, to end a message."""
        return ""

    def tag_reading(self, task: Any, labels: tuple[str, ...], train: Any) -> tuple[Any, str | None, str] | None:
        """Return how tags mark entities, with a notice and a remark; None for a kind without tags."""
        return None

    def notice_on_answers(self, task: Any, splits: Mapping[Any, Any]) -> str | None:
        """Return a notice on how labels or targets are written; ``splits`` are rows as read."""
        return None

    def notice_on_training(self, task: Any, answers: Any) -> str | None:
        """Return a notice on the checked training labels or targets."""
        return None

    def notice_on_scored(self, task: Any, split: str, answers: Any) -> str | None:
        """Return a notice on the checked labels or targets of the validation or test split."""
        return None

    def label_counts(self, answers: Any, num_labels: int) -> NDArray[np.int64]:
        """Return how often each label occurs among checked answers."""
        import numpy as np

        return np.bincount(answers, minlength=num_labels)

    def strata(self, answers: Any, groups: NDArray[np.int64], wanted: int) -> NDArray[np.int64] | None:
        """Return the stratum of each group of rows, or None if answers form none; see `preparation.stratified`.

        Args:
            answers: checked answers, one per row.
            groups: the group of each row, from 0 and without gaps.
            wanted: number of rows to hold out.
        """
        return None

    # What `init` looks for
    def guess(self, columns: Sequence[Any]) -> Any:
        """Return the task that a table's columns are, a `Guess`, or None; asked before anything is guessed from one column.

        Args:
            columns: the `Column` of each column; see `continual_petl.streams.scaffold`.
        """
        return None

    def drafted(self, guess: Any, max_length: int) -> dict[str, Any]:
        """Return the ``kind_settings`` of a drafted task that are not the defaults.

        Args:
            guess: the `Guess`.
            max_length: the maximum number of tokens in the draft.
        """
        return {}

    # Rows as they are learned
    def rooms(self, max_length: int, max_target_length: int | None) -> tuple[int, int]:
        """Return how many tokens an input and a target may keep; 0 for a target that is not a text."""
        return max_length, 0

    def how_encoded(self, task: Any, **how: Any) -> HowEncoded:
        """Return what determines how the rows of a task of this kind are encoded.

        Args:
            task: the `TaskSpec`, or the `TaskPlan`.
            how: what is not the task's own, such as the tokenizer; and whatever is different from what the task says.
        """
        own = {
            "max_target_length": task.max_target_length,
            "options": task.options,
            "settings": self.settings_of(task.kind_settings),
        }
        return HowEncoded(**own | how)

    def encode(
        self,
        inputs: Sequence[Any],
        how: HowEncoded,
        *,
        pairs: Sequence[str] | None = None,
        answers: Any = None,
        row_options: Sequence[Sequence[str]] | None = None,
    ) -> Any:
        """Return checked rows as `TokenisedRows`, with their labels or targets, or without for prediction.

        Args:
            inputs: texts, sources, conversations, lists of words or images, one per row; an empty list only checks ``how``.
            how: what determines the encoding, beside the kind.
            pairs: the second text of each row, for a task on text pairs.
            answers: labels ``(N,)`` or ``(N, C)``, an array of tags per row, or target texts; ``None`` if there are none.
            row_options: the texts to choose from in each row, if they are not the same.

        Raises:
            InputError: if the tokenizer, the preprocessing or a length does not fit the kind, or a row cannot be used.
            ValueError: if the tokenizer or the preprocessing that the kind needs is missing.
        """
        raise NotImplementedError

    def check_encoded(self, task: Any, rows: Any, max_length: int) -> None:
        """Check encoded rows of a `TaskSpec` without options."""

    def notices_on_encoded(self, task: Any, split: str, rows: Any, answers: Any) -> list[str]:
        """Return notices on the encoded rows of a split, `TokenisedRows`, whose checked answers these are."""
        return []

    def truncation_in_words(self, *, chats: bool) -> str:
        """Return what happens to the part of an input that does not fit, as the end of a sentence."""
        return "the rest of their text is not seen."

    # Learning
    def head(
        self,
        width: int,
        num_outputs: int,
        *,
        dropout: float,
        label_smoothing: float,
        class_weights: tuple[float, ...] | None,
        targets: Any,
    ) -> nn.Module:
        """Return the head, a `continual_petl.heads.head.Head` with uninitialised parameters.

        Args:
            width: size of the backbone's states.
            num_outputs: one per label; 1 for regression; not used by generative tasks.
            dropout: probability of dropout on the features, in training only.
            label_smoothing: share of a target that is spread over all labels, or over the vocabulary; not used by regression
                and multilabel tasks.
            class_weights: one per label; regression and generative tasks have none.
            targets: mean and deviation of the training targets, for regression.
        """
        raise NotImplementedError

    def row_weights(self, rows: Any, class_weights: tuple[float, ...] | None) -> NDArray[np.float64]:
        """Return how much each row counts in the mean that is the loss, ``(N,)``; here 1.

        Args:
            rows: the training split, `TokenisedRows`.
            class_weights: the weight of each label in the loss; None if all labels have the same weight.
        """
        import numpy as np

        return np.ones(len(rows))

    def balanced_weights(self, task: str, labels: tuple[str, ...], train: NDArray[np.generic]) -> tuple[float, ...]:
        """Return the class weights ``balanced``; see `heads.weights.resolve_class_weights`."""
        raise NotImplementedError

    # Rows that are read several times, such as once with each of their options
    def sequences(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a batch whose rows are the sequences that the backbone reads; here, each row is one."""
        return batch

    def of_rows(self, outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the head's outputs for rows, ``(B, ...)``, from its outputs for the `sequences` of their batch."""
        return outputs

    def as_probe(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the inputs of a probe, whose rows are those of a batch, from random sequences ``(8, W)``."""
        return inputs

    # Answers that are a part of the row's text
    def kept(self, outputs: Tensor, batch: dict[str, Tensor], settings: Mapping[str, Any] | None) -> Tensor:
        """Return what is kept of the outputs for a batch of rows, ``(B, ...)``, of the same shape for every row.

        Args:
            outputs: of the head, from `of_rows`.
            batch: the rows.
            settings: the values of `own_settings`.
        """
        return outputs

    def extracted(self, kept: Tensor, texts: Any) -> list[str]:
        """Return the answer to each row as a text; only kinds that extract have this method.

        Args:
            kept: from `kept`, ``(B, ...)``.
            texts: the `Texts` of these rows.
        """
        raise NotImplementedError

    def is_right(self, answer: str, references: Sequence[str]) -> bool:
        """Return whether an extracted text is one of the right answers; see `Texts.references`."""
        raise NotImplementedError

    # Scores and predictions
    def decide(
        self,
        task: str,
        labels: tuple[str, ...] | None,
        settings: Mapping[str, Any] | None,
        outputs: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> Any:
        """Return how answers are read from outputs, a `continual_petl.heads.decision.Decision`; None if the head decides it.

        It is asked before a task is learned and, unless it returned None, again once the bank is learned.

        Args:
            task: name of the task, for messages.
            labels: names in the order of the outputs.
            settings: the values of `own_settings`.
            outputs: the learned bank's outputs for the validation rows; None before it is learned.
            answers: the labels of these rows.

        Raises:
            InputError: if the settings do not fit the labels.
        """
        return None

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: Any, single_precision: bool
    ) -> dict[str, Any]:
        """Return fresh metric objects, `torchmetrics.Metric` or collections of them; see `heads.scores.make_scores`."""
        raise NotImplementedError

    def in_names(
        self, answers: Tensor, references: Tensor, labels: Sequence[str] | None
    ) -> tuple[list[Any], list[Any]]:
        """Return predictions and references of a batch in words, for a metric of the user's own.

        Args:
            answers: the result of `Head.predictions`.
            references: the labels.
            labels: names in the order of the head's outputs; None for kinds without.
        """
        if labels is None:
            return answers.flatten().tolist(), references.flatten().tolist()
        return [labels[place] for place in answers.tolist()], [labels[place] for place in references.tolist()]

    def in_words(
        self, labels: tuple[str, ...] | None, outputs_BC: Tensor, *, targets: Any, rounding: float
    ) -> list[Any]:
        """Return the `Prediction` for each row of outputs, without the name of its task.

        Args:
            labels: names in the order of the outputs; the options of a generative task.
            outputs_BC: one row of outputs per row of data, in fp32.
            targets: see `TaskPlan.targets`.
            rounding: how much two outputs may differ by rounding; see `heads.predictions.ROUNDING`.

        A task with a `Decision` gives it too, as ``decision``.
        """
        raise TypeError(f"a {self.name} task has no single row of outputs per row of data")


@dataclass(frozen=True, kw_only=True)
class HowRead:
    """What determines the meaning of the rows of a split, beside the task."""

    labels: tuple[str, ...] | None = None
    """The labels in the order of the head's outputs; None for kinds without."""
    positions: bool = False
    """Whether integers may be positions in ``labels``."""
    single_precision: bool = False
    """Whether numbers are read in float32, as before targets were standardised."""
    chat: Any = None
    """The `ChatSpec` of a task on conversations."""
    folder: str | None = None
    """Where relative paths in the rows begin."""


@dataclass(frozen=True, kw_only=True)
class HowEncoded:
    """What determines how rows are encoded, beside the kind of their task."""

    tokenizer: Any = None
    """The fast tokenizer of the backbone; not needed for images."""
    images: Any = None
    """The `ImageProcessing` of the backbone, for images."""
    max_length: int = 0
    """Maximum tokens per row."""
    max_target_length: int | None = None
    """As in the task; it also limits the sources of a causal-lm task, so it counts for predictions too."""
    chat: Any = None
    """The `ResolvedChat` of a task on conversations, which are lists of messages."""
    options: Sequence[str] | None = None
    """The texts to choose from in a generative task, the same for every row."""
    settings: Mapping[str, Any] | None = None
    """The settings of the task's kind."""
    where: Any = "rows"
    """Names the rows in messages: a `Where`, or a text; see `row_in`."""


@dataclass(frozen=True, kw_only=True)
class ReadRows:
    """Checked rows of a split."""

    inputs: list[Any]
    answers: Any
    """Labels or targets, as `Kind.encode` takes them."""
    names: list[Any]
    """The label or target of every row in readable form: a name, a list of names, a text, the spelling of a number."""
    keys: list[str] = field(default_factory=list)
    """A key for every input, equal for equal inputs; empty if the inputs are texts or lists of them."""
    options: list[tuple[str, ...]] | None = None
    """The options of every row, if each row has its own."""
    pairs: list[str] | None = None
    """The second text of every row, for kinds whose rows always have two."""
