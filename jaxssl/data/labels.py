"""Convert the labels of a user's data set to class indices."""

from typing import Any

import numpy as np

from jaxssl.data.integrity import MAX_CLASSES
from jaxssl.data.records import UNLABELLED
from jaxssl.errors import UserError, one_line


def convert_labels(labels: Any, count: int, name: str) -> np.ndarray:
    """Return class indices as int32 [n], -1 for examples without a label.

    Args:
        labels: integers [n], the class indices. -1 and None stand for no label.
        count: n, the number of examples.
        name: of the data, for messages.

    Raises:
        UserError: if the labels have another form, or are out of range.
    """
    try:
        values = np.asarray(labels, None if len(labels) else np.int32)
    except (TypeError, ValueError) as error:
        raise UserError(f"the labels of {name} are no array: {one_line(error)}") from error
    if values.dtype == object and values.ndim == 1:
        values = np.asarray([UNLABELLED if x is None else x for x in values])
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise UserError(
            f"the labels of {name} are {values.dtype} {list(values.shape)}; expected {count} "
            "integers, the class indices"
        )
    for label in (values.min(initial=0), values.max(initial=0)):
        if not UNLABELLED <= int(label) < MAX_CLASSES:  # before the cast, which would wrap around
            raise UserError(
                f"{name} has the label {label}; expected 0, 1, ... below {MAX_CLASSES}, or -1 for "
                "none"
            )
    return values.astype(np.int32)
