"""Stack Overflow: the next word of a user's posts, or their tags."""

from __future__ import annotations

from fedax.data.folder import load_dataset
from fedax.data.stackoverflow import NUM_TAGS, NUM_WORDS
from fedax.data.task import Task
from fedax.models import tag_logistic_regression, word_lstm
from fedax.models.metrics import recall_at, token_accuracy
from fedax.tasks.populations import sampled

# After padding, 0, and the words, 1 to 10,000: see `fedax.Vocabulary`.
UNKNOWN, END = NUM_WORDS + 1, NUM_WORDS + 3


def load_words(
    model: str,
    max_examples: int | None = None,
    num_clients: int | None = None,
    client_seed: int = 0,
) -> Task:
    """Predicts the next word of posts, from 10,000 words; 342,477 users.

    The metric `accuracy` ignores padding, unknown words and the end of a sentence as targets;
    `accuracy_no_oov` includes the end, and `accuracy_with_oov` also unknown words, as in the code
    released with Reddi et al. 2021.

    Args:
      model: "lstm" (Charles and Konečný 2020 and Reddi et al. 2021, 4,050,748 parameters) or
        "small".
      max_examples: use at most this many of each user's first posts; none: all.
      num_clients: the number of users, drawn at random; none: all.
      client_seed: seed of that draw.
    """
    left_out = (UNKNOWN, END)
    models = {
        "lstm": lambda: word_lstm(leave_out=left_out),
        "small": lambda: word_lstm(
            embedding_size=16, num_units=32, leave_out=left_out
        ),
    }
    made = models[model]()
    made = made._replace(metrics={
        **made.metrics,
        "accuracy_no_oov": token_accuracy((UNKNOWN,)), "accuracy_with_oov": token_accuracy(),
    })
    data = sampled(load_dataset("stackoverflow-words"), num_clients, max_examples, client_seed)
    return Task(made, data.train, data.test, "stackoverflow-words")


def load_tags(
    model: str,
    max_examples: int | None = None,
    num_clients: int | None = None,
    client_seed: int = 0,
) -> Task:
    """Predicts the tags of posts, from 500 tags, by bags of 10,000 words; 342,477 users.

    The metric `recall_at_5` is that of the decaying-steps paper (2021) and Reddi et al. 2021.

    Args:
      model: "logistic", one logistic regression per tag, 5,000,500 parameters.
      max_examples: use at most this many of each user's first posts; none: all.
      num_clients: the number of users, drawn at random; none: all.
      client_seed: seed of that draw.
    """
    del model  # there is one
    made = tag_logistic_regression(NUM_WORDS, NUM_TAGS)
    made = made._replace(metrics={**made.metrics, "recall_at_5": recall_at(5)})
    data = sampled(load_dataset("stackoverflow-tags"), num_clients, max_examples, client_seed)
    return Task(made, data.train, data.test, "stackoverflow-tags")
