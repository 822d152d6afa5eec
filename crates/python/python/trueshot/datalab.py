"""Label audits as an issue type of cleanlab's Datalab. Importing this module registers it.

>>> import numpy as np, trueshot.datalab
>>> from cleanlab import Datalab
>>> rng = np.random.default_rng(0)
>>> kinds = np.repeat([0, 1, 2], 5)
>>> X = rng.normal(size=(15, 64)) + 8 * np.eye(3, 64)[kinds]
>>> y = np.array(["ant", "bee", "cow"])[kinds]
>>> y[4] = "cow"                                         # an ant with the wrong label
>>> lab = Datalab({"label": y}, label_name="label", verbosity=0)
>>> lab.find_issues(features=X, issue_types={"trueshot_label": {}})
>>> issues = lab.get_issues("trueshot_label")
>>> issues.index[issues["is_trueshot_label_issue"]].tolist()
[4]
>>> lab.get_info("trueshot_label")["suggested_label"][4]
'ant'
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

try:
    import pandas
    from cleanlab.datalab.internal import issue_finder
    from cleanlab.datalab.internal.issue_manager import IssueManager
    from cleanlab.datalab.internal.issue_manager_factory import register
except ImportError as problem:
    raise ImportError(f"trueshot.datalab needs cleanlab with Datalab: {problem}\nhint: pip install 'cleanlab[datalab]'") from None

from ._audit import Audit, audit

__all__ = ["TrueshotLabelIssueManager"]


class TrueshotLabelIssueManager(IssueManager):
    """The issue type ``trueshot_label`` of Datalab: labels that :func:`trueshot.audit` suspects, from features alone.

    The score of a row is the probability that its label is right, and the score of the set the mean of its rows. The info
    has ``suggested_label`` (None where there is no suggestion), ``action`` and ``expected_wrong``, as the audit has them.
    ``certainty``, ``expected_noise`` and ``threads`` are those of :func:`trueshot.audit`:
    ``issue_types={"trueshot_label": {"expected_noise": 0.1}}``.
    """

    issue_name: ClassVar[str] = "trueshot_label"
    description: ClassVar[str] = "Labels that are probably wrong, judged by the features of all rows with an audit of trueshot."
    verbosity_levels: ClassVar[dict[int, list[str]]] = {0: [], 1: ["expected_wrong"], 2: ["suggested_label", "action"]}

    def find_issues(
        self,
        features: Any = None,
        certainty: float | None = None,
        expected_noise: float | None = None,
        threads: int | None = None,
        **_: Any,
    ) -> None:
        """Audit the labels of the Datalab and store issues, summary and info."""
        if features is None:
            raise ValueError(
                "the issue type trueshot_label needs features: find_issues(features=X, issue_types={'trueshot_label': {}})"
            )
        settings: dict[str, Any] = {"certainty": certainty, "expected_noise": expected_noise, "threads": threads}
        found = audit(features, self.datalab.labels, neighbours=0, **settings)
        scores = 1 - found.p_wrong
        self.issues = pandas.DataFrame(
            {f"is_{self.issue_name}_issue": found.suspect, self.issue_score_key: scores.astype(float)}
        )
        self.summary = self.make_summary(score=float(scores.mean()))
        self.info = self.collect_info(found)

    def collect_info(self, found: Audit) -> dict[str, Any]:  # type: ignore[override]
        """What the audit says beyond the scores, with the names that the labels had."""
        names = np.asarray(self.datalab.class_names).tolist()
        suggested = [None if label is None else names[label] for label in found.suggested]
        return {"suggested_label": suggested, "action": found.action.tolist(), "expected_wrong": found.expected_wrong}


register(TrueshotLabelIssueManager)
# Datalab passes features only to issue types that it knows to need them.
getattr(issue_finder, "_CLASSIFICATION_ARGS_DICT", {}).setdefault(TrueshotLabelIssueManager.issue_name, ["features"])
