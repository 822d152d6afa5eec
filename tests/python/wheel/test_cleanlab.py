"""cleanlab's functions from features and from predicted probabilities, compared with cleanlab itself where it is installed."""

import warnings

import numpy as np
import pytest

import trueshot as ts
from conftest import support_set
from trueshot import cleanlab as ours

SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
PRUNES = ("prune_by_noise_rate", "prune_by_class", "both")
FILTERS = (*PRUNES, "confident_learning", "predicted_neq_given", "low_normalized_margin", "low_self_confidence")
SEEDS = range(6)


def predictions(seed, missing=0):
    """Random labels, some of them wrong, and probabilities; the first ``missing`` classes have no label."""
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 7)) + missing
    truth = np.concatenate([np.arange(missing, classes), random.integers(missing, classes, 40 + 10 * classes)])
    strength = random.random()
    probs = (1 - strength) * random.dirichlet(np.ones(classes), len(truth)) + strength * np.eye(classes)[truth]
    probs = (probs + 1e-4) / (probs + 1e-4).sum(axis=1, keepdims=True)
    given = np.where(random.random(len(truth)) < 0.3, random.integers(missing, classes, len(truth)), truth)
    given[: classes - missing] = np.arange(missing, classes)
    return given, probs


def multi_label_predictions(seed):
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 6))
    truth = random.random((80, classes)) < 0.4
    probs = 0.4 * random.beta(0.5, 0.5, truth.shape) + 0.6 * random.uniform(0.2, 1, truth.shape) * truth
    given = np.where(random.random((80, 1)) < 0.2, random.random(truth.shape) < 0.4, truth)
    return [np.flatnonzero(row).tolist() for row in given], probs


@pytest.fixture
def cleanlab():
    found = pytest.importorskip("cleanlab")
    import cleanlab.count
    import cleanlab.filter
    import cleanlab.rank  # noqa: F401

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield found


def test_masks_rankings_and_scores_agree_with_the_audit(rows):
    X, y, _ = rows
    found = ts.audit(X, y)
    mask = ts.find_label_issues(y, X)
    assert mask.dtype == bool and np.flatnonzero(mask).tolist() == [3]
    assert np.array_equal(mask, found.suspect)
    for ranked_by in SCORES:
        assert ts.find_label_issues(y, X, return_indices_ranked_by=ranked_by).tolist() == [3]
        scores = ts.get_label_quality_scores(y, X, method=ranked_by)
        assert scores.argmin() == 3 and (0 <= scores).all() and (scores <= 1).all()
    assert np.array_equal(ts.get_label_quality_scores(y, X), 1 - found.p_wrong)
    assert np.array_equal(ts.find_label_issues(labels=y, features=X, n_jobs=1, verbose=True), mask)
    with pytest.raises(ValueError, match="allowed: None, self_confidence, normalized_margin"):
        ts.find_label_issues(y, X, return_indices_ranked_by="entropy")
    with pytest.raises(ValueError, match="allowed: self_confidence"):
        ts.get_label_quality_scores(y, X, method="entropy")


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_a_few_rows_per_class_are_enough(shots):
    X, y, _ = support_set(ways=4, shots=shots, wrong=())
    assert ts.get_label_quality_scores(y, X).shape == (4 * shots,)
    assert ts.find_label_issues(y, X).dtype == bool


def test_cleanlabs_own_helpers_take_the_results(cleanlab):
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [0, 1])
def test_scores_from_probabilities_are_those_of_cleanlab(cleanlab, seed, missing):
    labels, probs = predictions(seed, missing)
    for method in SCORES:
        for adjust in (False, True)[: 1 if method == SCORES[2] else 2]:
            theirs = cleanlab.rank.get_label_quality_scores(labels, probs, method=method, adjust_pred_probs=adjust)
            mine = ts.get_label_quality_scores(labels, pred_probs=probs, method=method, adjust_pred_probs=adjust)
            assert np.allclose(mine, theirs, atol=1e-12), (method, adjust)
        theirs = cleanlab.rank.order_label_issues(labels % 2 == 0, labels, probs, rank_by=method)
        assert ours.order_label_issues(labels % 2 == 0, labels, probs, rank_by=method).tolist() == theirs.tolist()
    for name in (*(f"get_{method}_for_each_label" for method in SCORES), "get_confident_thresholds"):
        theirs = getattr(cleanlab.count if "thresholds" in name else cleanlab.rank, name)
        assert np.allclose(getattr(ours, name)(labels, probs), theirs(labels, probs), atol=1e-12), name


@pytest.mark.parametrize("kind", [np.uint64, object])
def test_labels_above_the_range_of_int64_belong_to_the_columns_in_sorted_order(kind):
    names = np.array([0, 2**63 + 1], dtype=kind)
    numbers = np.array([0, 1, 1, 0, 1])
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3], [0.1, 0.9]])
    expected = ts.get_label_quality_scores(numbers, pred_probs=probs)
    assert np.array_equal(ts.get_label_quality_scores(names[numbers], pred_probs=probs), expected)
    assert np.array_equal(ts.get_label_quality_scores(names[numbers], probs), expected)
    with pytest.raises(ValueError, match="labels has 2 classes, but pred_probs has 3 columns"):
        ts.get_label_quality_scores(names[numbers], pred_probs=np.full((5, 3), 1 / 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_of_ensembles_are_those_of_cleanlab(cleanlab, seed):
    labels, probs = predictions(seed)
    random = np.random.default_rng(seed)
    models = [probs, *(random.dirichlet(np.ones(probs.shape[1]), len(probs)) * 0.3 + probs * 0.7 for _ in range(2))]
    for weights in ("uniform", "accuracy", "log_loss_search", "custom"):
        options = {"weight_ensemble_members_by": weights, "custom_weights": [0.5, 0.3, 0.2] if weights == "custom" else None}
        theirs = cleanlab.rank.get_label_quality_ensemble_scores(labels, models, verbose=False, **options)
        mine = ours.get_label_quality_ensemble_scores(labels, models, **options)
        assert np.allclose(mine, theirs, atol=1e-9), weights


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("missing", [0, 1])
def test_counts_of_confident_learning_are_those_of_cleanlab(cleanlab, seed, missing):
    labels, probs = predictions(seed, missing)
    options = {"calibrate": False, "return_indices_of_off_diagonals": True}
    joint, rows = ours.compute_confident_joint(labels, probs, **options)
    their_joint, their_rows = cleanlab.count.compute_confident_joint(labels, probs, **options)
    assert joint.tolist() == their_joint.tolist() and list(rows) == list(their_rows)
    calibrated, theirs = ours.compute_confident_joint(labels, probs), cleanlab.count.compute_confident_joint(labels, probs)
    assert calibrated.sum(axis=1).tolist() == np.bincount(labels, minlength=probs.shape[1]).tolist()
    # Equal fractions of a row are rounded up in an order that NumPy does not define.
    assert abs(calibrated - theirs).max() <= 1
    assert ours.num_label_issues(labels, probs) == cleanlab.count.num_label_issues(labels, probs)
    if not missing:
        for method in ("cnt", "marginal", "marginal_ps"):
            mine = ours.estimate_latent(theirs, labels, py_method=method)
            for one, other in zip(mine, cleanlab.count.estimate_latent(theirs, labels, py_method=method)):
                assert np.allclose(one, other, atol=1e-5), method


@pytest.mark.parametrize("filter_by", FILTERS)
@pytest.mark.parametrize("missing", [0, 1])
def test_filters_of_probabilities_are_those_of_cleanlab(cleanlab, filter_by, missing):
    for seed in SEEDS:
        labels, probs = predictions(seed, missing)
        joint = {"confident_joint": ours.compute_confident_joint(labels, probs)} if filter_by in PRUNES else {}
        settings = [{}]
        if filter_by in PRUNES:
            settings += [{"frac_noise": 0.5}, {"min_examples_per_class": 5}]
        if filter_by == "prune_by_class":
            settings += [{"num_to_remove_per_class": [1] * probs.shape[1]}] if not missing else []
        for setting in settings:
            options = {"filter_by": filter_by, **joint, **setting}
            theirs = cleanlab.filter.find_label_issues(labels, probs, n_jobs=1, **options)
            assert np.array_equal(ts.find_label_issues(labels, pred_probs=probs, **options), theirs), (seed, setting)
            ranked = cleanlab.filter.find_label_issues(
                labels, probs, n_jobs=1, return_indices_ranked_by="normalized_margin", **options
            )
            mine = ts.find_label_issues(labels, pred_probs=probs, return_indices_ranked_by="normalized_margin", **options)
            assert mine.tolist() == ranked.tolist()


def test_other_filters_of_cleanlab_give_the_same(cleanlab):
    for seed in SEEDS:
        labels, probs = predictions(seed)
        theirs = cleanlab.filter.find_predicted_neq_given(labels, probs)
        assert np.array_equal(ours.find_predicted_neq_given(labels, probs), theirs)
        for filter_by in PRUNES:
            options = {"calibrate": False, "filter_by": filter_by}
            theirs = cleanlab.filter.find_label_issues_using_argmax_confusion_matrix(labels, probs, **options)
            mine = ours.find_label_issues_using_argmax_confusion_matrix(labels, probs, **options)
            assert np.array_equal(mine, theirs), (seed, filter_by)


@pytest.mark.parametrize("filter_by", FILTERS)
def test_rows_with_several_labels_are_filtered_as_by_cleanlab(cleanlab, filter_by):
    for seed in SEEDS:
        labels, probs = multi_label_predictions(seed)
        options = {"multi_label": True, "filter_by": filter_by}
        if filter_by in PRUNES:
            options["confident_joint"] = ours.compute_confident_joint(labels, probs, multi_label=True)
        for ranked_by in (None, "self_confidence"):
            theirs = cleanlab.filter.find_label_issues(labels, probs, n_jobs=1, return_indices_ranked_by=ranked_by, **options)
            mine = ts.find_label_issues(labels, probs, return_indices_ranked_by=ranked_by, **options)
            if filter_by.startswith("low_"):  # cleanlab returns these rows unsorted
                mine, theirs = np.sort(mine), np.sort(theirs)
            assert mine.tolist() == theirs.tolist(), (seed, ranked_by)


def test_a_label_that_is_certainly_right_has_the_best_entropy_score_and_one_without_probability_the_worst():
    score = ours.get_confidence_weighted_entropy_for_each_label([0, 0, 0], [[1, 0], [0, 1], [1 - 1e-12, 1e-12]])
    assert score[:2].tolist() == [1, 0] and score[2] > 0.999


def test_the_number_of_rows_to_remove_is_that_of_the_label():
    labels, probs = predictions(3)
    wanted = np.arange(probs.shape[1]) % 3
    for filter_by in ("prune_by_class", "prune_by_noise_rate"):
        found = ts.find_label_issues(labels, pred_probs=probs, filter_by=filter_by, num_to_remove_per_class=wanted)
        counts = np.bincount(labels[found], minlength=probs.shape[1])
        assert (counts <= wanted).all() and counts.sum() > 0
    assert not ts.find_label_issues(labels, pred_probs=probs, num_to_remove_per_class=0).any()


def test_probabilities_are_recognised_by_their_form_and_never_taken_for_features():
    labels, probs = predictions(0)
    expected = ts.find_label_issues(labels, pred_probs=probs)
    for form in (probs, probs.astype("f2"), probs.tolist(), np.asfortranarray(probs)):
        assert np.array_equal(ts.find_label_issues(labels, form), expected)
    names = np.array(["ant", "bee", "cow", "dog", "elk", "fox"])[labels]
    assert np.array_equal(ts.find_label_issues(names, probs), expected)
    assert np.array_equal(ts.get_label_quality_scores(labels, probs), probs[np.arange(len(labels)), labels])

    for function in (ts.find_label_issues, ts.get_label_quality_scores, ts.get_pred_probs):
        doubled = probs.copy()
        doubled[7] *= 2
        with pytest.raises(ValueError, match=r"row 7 sums to 2; rows of pred_probs must sum to 1; if it is features, pass features="):
            function(labels, doubled)
        more = np.hstack([probs / 2, probs / 2])
        with pytest.raises(ValueError, match=f"has {more.shape[1]} columns for .* classes; pass it as pred_probs= or features="):
            function(labels, more)
        with pytest.raises(ValueError, match=r"logarithms of predicted probabilities; pass pred_probs=numpy.exp\(..\)"):
            function(labels, np.log(np.maximum(probs, 1e-9)))
        with pytest.raises(TypeError, match=r"labels has shape .* and the second argument .*; pass the labels first"):
            function(probs, labels)
    with pytest.raises(ValueError, match="already looks like predicted probabilities"):
        ts.get_pred_probs(labels, probs)
    assert np.array_equal(ts.find_label_issues(labels, probs, n_jobs=1, verbose=True, low_memory=True), expected)


def test_features_that_look_like_probabilities_are_features_if_the_caller_says_so():
    labels, probs = predictions(0)
    found = ts.audit(probs, labels)
    assert np.array_equal(ts.find_label_issues(labels, features=probs), found.suspect)
    assert np.array_equal(ts.get_label_quality_scores(labels, features=probs), 1 - found.p_wrong)
    assert ts.get_pred_probs(labels, features=probs).shape == probs.shape
    histograms = np.hstack([probs / 2, probs / 2])
    assert ts.find_label_issues(labels, features=histograms).dtype == bool
    with pytest.raises(ValueError, match="labels has .* classes|sums to"):
        ts.find_label_issues(np.repeat(["a", "b"], len(labels) // 2 + 1)[: len(labels)], pred_probs=probs[:, :1])


LABELS, PROBS = predictions(1)


def changed(row, column, value):
    array = PROBS.copy()
    array[row, column] = value
    return array


BAD = {
    "row sum": ({"pred_probs": PROBS * [[0.5]]}, "row 0 sums to 0.5; rows of pred_probs must sum to 1"),
    "negative": ({"pred_probs": changed(3, 1, -0.5)}, "pred_probs row 3, column 1 is -0.5; .* softmax"),
    "NaN": ({"pred_probs": changed(3, 1, np.nan)}, "pred_probs row 3, column 1 is NaN"),
    "infinity": ({"pred_probs": changed(3, 1, np.inf)}, "row 3 sums to inf"),
    "one dimension": ({"pred_probs": PROBS[0]}, r"pred_probs must have the shape \(rows, classes\), got"),
    "too few rows": ({"pred_probs": PROBS[:-1]}, "labels has .* entries, but pred_probs has"),
    "too few columns": ({"pred_probs": np.ones((len(PROBS), 1))}, "but pred_probs has 1 columns"),
    "both": ({"pred_probs": PROBS, "features": PROBS}, "got pred_probs and features"),
    "neither": ({}, "pass either pred_probs= or features="),
    "texts": ({"pred_probs": PROBS.astype(str)}, "pred_probs must be numbers"),
    "filter": ({"pred_probs": PROBS, "filter_by": "prune"}, "filter_by is 'prune'; allowed: prune_by_noise_rate, prune_by_class"),
    "ranking": ({"pred_probs": PROBS, "return_indices_ranked_by": "entropy"}, "allowed: None, self_confidence"),
    "rank_by_kwargs": ({"pred_probs": PROBS, "rank_by_kwargs": {"adjust": True}}, "rank_by_kwargs has 'adjust'; allowed"),
    "frac_noise": ({"pred_probs": PROBS, "frac_noise": 1.5}, "frac_noise is 1.5; allowed: 0 to 1"),
    "frac_noise, other filter": (
        {"pred_probs": PROBS, "frac_noise": 0.5, "filter_by": "confident_learning"}, "not supported with filter_by="),
    "rows to remove": ({"pred_probs": PROBS, "num_to_remove_per_class": [1]}, "num_to_remove_per_class is .1.; allowed"),
    "negative rows to remove": ({"pred_probs": PROBS, "num_to_remove_per_class": -1}, "num_to_remove_per_class is -1"),
    "joint": ({"pred_probs": PROBS, "confident_joint": np.ones((2, 3))}, r"confident_joint has the shape \(2, 3\)"),
    "certainty": ({"pred_probs": PROBS, "certainty": 0.9}, "certainty= needs features, but pred_probs were given"),
    "threads": ({"pred_probs": PROBS, "threads": 2}, "threads= needs features"),
    "filter of features": ({"features": PROBS, "filter_by": "both"}, r"filter_by= needs pred_probs.*get_pred_probs\(labels, features\)"),
    "adjusted ranking of features": ({"features": PROBS, "rank_by_kwargs": {"adjust_pred_probs": True}}, "adjust_pred_probs= needs"),
    "several labels of features": ({"features": PROBS, "multi_label": True}, "multi_label= needs pred_probs"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_say_what_to_do_and_name_no_option_of_the_command_line(case):
    options, said = BAD[case]
    with pytest.raises((ValueError, TypeError), match=said) as problem:
        ts.find_label_issues(LABELS, **options)
    assert "--" not in str(problem.value) and "`trueshot" not in str(problem.value)


def test_wrong_arguments_of_the_other_functions_say_what_is_allowed():
    calls = [
        (lambda: ts.get_label_quality_scores(LABELS, features=PROBS, adjust_pred_probs=True), "adjust_pred_probs= needs pred_probs"),
        (lambda: ts.get_label_quality_scores(LABELS, PROBS, method=SCORES[2], adjust_pred_probs=True), "not supported with method"),
        (lambda: ours.get_label_quality_ensemble_scores(LABELS, []), "pred_probs_list is empty"),
        (lambda: ours.get_label_quality_ensemble_scores(LABELS, PROBS), "must be a list of arrays"),
        (lambda: ours.get_label_quality_ensemble_scores(LABELS, [PROBS], weight_ensemble_members_by="votes"), "allowed: uniform"),
        (lambda: ours.get_label_quality_ensemble_scores(LABELS, [PROBS], custom_weights=[1]), "weight_ensemble_members_by='custom'"),
        (lambda: ours.order_label_issues(LABELS, LABELS, PROBS), "label_issues_mask must be .* booleans"),
        (lambda: ours.order_label_issues(LABELS > 0, LABELS, PROBS, rank_by="worst"), "rank_by is 'worst'; allowed"),
        (lambda: ours.find_top_issues([0.1], top=-1), "top is -1"),
        (lambda: ours.num_label_issues(LABELS, PROBS, estimation_method="guess"), "not a valid estimation method; allowed"),
        (lambda: ours.num_label_issues(LABELS, PROBS, estimation_method="off_diagonal_custom"), "confident_joint="),
        (lambda: ours.estimate_latent(np.eye(PROBS.shape[1]), LABELS, py_method="x"), "py_method is 'x'; it should be"),
        (lambda: ours.compute_confident_joint(LABELS, PROBS, thresholds=[0.5]), r"thresholds has the shape \(1,\)"),
        (lambda: ours.calibrate_confident_joint(np.eye(1), LABELS), "confident_joint has 1 columns"),
        (lambda: ts.find_label_issues([0, 1], [[0.5, 0.5]] * 2, multi_label=True), "labels row 0 is 0; with multi_label=True"),
        (lambda: ts.find_label_issues([[0], [5]], [[0.5, 0.5]] * 2, multi_label=True), "row 1 has class 5; allowed: 0 to 1"),
        (lambda: ts.find_label_issues([[0]], [[0.5, 1.5]], multi_label=True), "row 0, column 1 is 1.5"),
        (lambda: ours.estimate_noise_matrices, r"call estimate_py_and_noise_matrices_from_probabilities\(labels, get_pred_probs"),
        (lambda: ours.estimate_cv_predicted_probabilities, r"call get_pred_probs\(labels, X\)"),
    ]  # fmt: skip
    for call, said in calls:
        with pytest.raises((ValueError, TypeError, AttributeError), match=said):
            call()


def test_a_joint_that_is_not_used_is_a_warning():
    joint = ours.compute_confident_joint(LABELS, PROBS)
    with pytest.warns(UserWarning, match="confident_joint= is not used with filter_by='confident_learning'"):
        ts.find_label_issues(LABELS, PROBS, filter_by="confident_learning", confident_joint=joint)


def test_datalab_finds_the_issue_type_and_its_scores_are_those_of_the_audit():
    pytest.importorskip("datasets", reason="Datalab needs the packages of cleanlab[datalab]")
    cleanlab = pytest.importorskip("cleanlab")
    import trueshot.datalab  # noqa: F401

    X, y, truth = support_set(ways=4, shots=8, wrong=(1, 12))
    names = np.array(["ant", "bee", "cow", "dog"])
    lab = cleanlab.Datalab({"label": names[y]}, label_name="label", verbosity=0)
    assert "trueshot_label" in lab.list_possible_issue_types()
    lab.find_issues(features=X, issue_types={"trueshot_label": {}})
    issues, found = lab.get_issues("trueshot_label"), ts.audit(X, y)
    assert issues.columns.tolist() == ["is_trueshot_label_issue", "trueshot_label_score"]
    assert np.flatnonzero(issues["is_trueshot_label_issue"]).tolist() == [1, 12]
    assert np.allclose(issues["trueshot_label_score"], 1 - found.p_wrong) and issues["trueshot_label_score"].between(0, 1).all()
    summary = lab.get_issue_summary("trueshot_label")
    assert summary["num_issues"].tolist() == [2] and np.allclose(summary["score"], (1 - found.p_wrong).mean())
    info = lab.get_info("trueshot_label")
    assert [info["suggested_label"][row] for row in (0, 1, 12)] == [None, *names[truth[[1, 12]]]]
    assert info["expected_wrong"] == found.expected_wrong

    lab.find_issues(features=X, issue_types={"trueshot_label": {"expected_noise": 0.0}})
    assert lab.get_issue_summary("trueshot_label")["num_issues"].tolist() == [int(ts.audit(X, y, expected_noise=0).suspect.sum())]


def test_datalab_without_features_says_what_is_needed(capsys):
    pytest.importorskip("datasets", reason="Datalab needs the packages of cleanlab[datalab]")
    cleanlab = pytest.importorskip("cleanlab")
    import trueshot.datalab  # noqa: F401

    lab = cleanlab.Datalab({"label": ["ant", "bee"] * 4}, label_name="label", verbosity=0)
    lab.find_issues(issue_types={"trueshot_label": {}})
    assert "the issue type trueshot_label needs features: find_issues(features=X" in capsys.readouterr().out
