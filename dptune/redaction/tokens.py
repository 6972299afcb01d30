"""The length-preserving redaction: one mask for each sensitive token."""

import numpy as np
import numpy.typing as npt

from dptune.errors import DetectionError


def mask_tokens(
    token_ids: npt.ArrayLike, sensitive: npt.ArrayLike, *, mask_id: int
) -> npt.NDArray[np.int64]:
    """Replace each sensitive token by the mask token.

    The result is as long as the input, so that positions, windows and per-token weights
    of the original fit it. Beside which tokens are sensitive it tells how many there
    are, which a merged mask hides.

    Args:
        token_ids: ids of one text or of a batch, any shape.
        sensitive: booleans of the same shape, from `detection.align.token_labels`.
        mask_id: from `models.mask.add_mask_token`, at least 0.

    Returns:
        New ids of the same shape.

    Raises:
        DetectionError: the shapes differ, or `mask_id` is negative.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    marks = np.asarray(sensitive, dtype=np.bool_)
    if ids.shape != marks.shape or mask_id < 0:
        raise DetectionError(
            "token_ids and sensitive must have one shape and mask_id must be >= 0, "
            f"got shapes {ids.shape} and {marks.shape}, mask_id={mask_id}. Label the "
            "tokens of the same encoding."
        )
    return np.where(marks, np.int64(mask_id), ids)
