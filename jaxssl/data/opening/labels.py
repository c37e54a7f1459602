"""Convert the labels of a user's data set to class indices."""

from typing import Any

import numpy as np

from jaxssl.data.integrity import MAX_CLASSES
from jaxssl.data.records import UNLABELLED
from jaxssl.errors import UserError, one_line


def convert_labels(labels: Any, count: int, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return class indices as int32 [n], -1 for examples without a label, and class names.

    Args:
        labels: [n] or [n, 1], either class indices of any numeric type, or strings, whose sorted
            values become the classes. -1, None, NaN and "" stand for no label.
        count: n, the number of examples.
        name: of the data, for messages.

    Returns:
        The indices, and the names of the classes. () for numbers.

    Raises:
        UserError: if the labels have another form, or are out of range.
    """
    out = np.full(count, UNLABELLED, np.int32)
    try:
        values = np.asarray(labels)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        given = np.array([not (x is None or x != x or x == "") for x in values.tolist()], bool)
        present = values[given]
        present = np.asarray(present.tolist()) if present.dtype == object else present
    except (TypeError, ValueError) as error:
        raise UserError(f"the labels of {name} are no array: {one_line(error)}") from error
    if values.ndim != 1:
        raise UserError(
            f"the labels of {name} have the shape {list(values.shape)}; expected one class for "
            "each image; for one-hot labels, pass labels.argmax(1)"
        )
    if len(values) != count:
        raise UserError(f"{name} has {count} images but {len(values)} labels")
    if present.dtype.kind == "U" and all(isinstance(x, str) for x in values[given].tolist()):
        names, out[given] = np.unique(present, return_inverse=True)
        return out, tuple(map(str, names))
    if present.dtype.kind not in "biuf" or not (present == np.round(present)).all():
        raise UserError(
            f"the labels of {name} are {values.dtype} {list(values.shape)}; expected integers, the "
            "class indices, or strings, the class names"
        )
    for label in (present.min(initial=0).item(), present.max(initial=0).item()):
        if not UNLABELLED <= label < MAX_CLASSES:  # before the cast, which would wrap around
            raise UserError(
                f"{name} has the label {label}; expected 0, 1, ... below {MAX_CLASSES}, or -1 for "
                "none"
            )
    out[given] = present
    return out, ()
