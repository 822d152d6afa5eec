"""cleanlab's habits, with cleanlab itself where it is installed, and where it refuses."""

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set


def test_masks_rankings_and_scores_agree_with_the_audit(rows):
    X, y, _ = rows
    found = ts.audit(X, y)
    mask = ts.find_label_issues(y, X)
    assert mask.dtype == bool and np.flatnonzero(mask).tolist() == [3]
    assert np.array_equal(mask, found.suspect)
    for ranked_by in ("self_confidence", "normalized_margin"):
        assert ts.find_label_issues(y, X, return_indices_ranked_by=ranked_by).tolist() == [3]
        scores = ts.get_label_quality_scores(y, X, method=ranked_by)
        assert scores.argmin() == 3 and (0 <= scores).all() and (scores <= 1).all()
    assert np.array_equal(ts.get_label_quality_scores(y, X), 1 - found.p_wrong)
    with pytest.raises(ValueError, match="allowed: None, self_confidence, normalized_margin"):
        ts.find_label_issues(y, X, return_indices_ranked_by="entropy")
    with pytest.raises(ValueError, match="allowed: self_confidence"):
        ts.get_label_quality_scores(y, X, method="entropy")


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_a_few_rows_a_class_are_enough(shots):
    X, y, _ = support_set(ways=4, shots=shots, wrong=())
    assert ts.get_label_quality_scores(y, X).shape == (4 * shots,)
    assert ts.find_label_issues(y, X).dtype == bool


def test_cleanlabs_own_helpers_take_the_results():
    cleanlab = pytest.importorskip("cleanlab")
    from cleanlab.dataset import health_summary
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores, order_label_issues

    X, y, _ = support_set(ways=4, shots=8, wrong=(1, 12))
    probabilities = ts.get_pred_probs(y, X)
    assert probabilities.shape == (32, 4) and np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    theirs = order_label_issues(ts.find_label_issues(y, X), y, probabilities)
    mine = ts.find_label_issues(y, X, return_indices_ranked_by="self_confidence")
    assert set(theirs) == set(mine) == {1, 12}
    assert set(find_label_issues(y, probabilities, return_indices_ranked_by="self_confidence")) <= {1, 12}
    assert get_label_quality_scores(y, probabilities).argmin() in (1, 12)
    summary = health_summary(y, probabilities, verbose=False)
    assert 0 < summary["overall_label_health_score"] <= 1
