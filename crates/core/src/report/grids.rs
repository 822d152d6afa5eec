//! The tables of an evaluation, independent of the output format: [`all`] and [`significance`] make [`Grid`]s of text
//! cells that the text, Markdown, LaTeX and HTML reports format.
//!
//! An evaluation has results for every method under every noise setting, which is a kind of wrong labels and its level.
//! There is one table per quantity and noise kind, as in the paper, with one row per method and one column per level.
//! That keeps tables within 80 columns, and puts the levels of one kind, which users compare, side by side.

use crate::evaluate::{Evaluation, MethodResult, SettingResult};
use crate::noise::NoiseKind;

/// A table of text cells.
pub(super) struct Grid {
    /// The quantity and the noise setting of the table. The HTML page finds the tables of a noise kind by the end of
    /// the title, `, KIND noise`.
    pub title: String,
    /// Headers of the columns, including the column of row names.
    pub columns: Vec<String>,
    /// The rows: a name, and one cell per other column.
    pub rows: Vec<(String, Vec<Cell>)>,
}

/// One cell of a table.
#[derive(Clone, Default)]
pub(super) struct Cell {
    pub text: String,
    /// Whether it is the best of its column.
    pub best: bool,
}

/// The mark after the names of transductive methods.
pub(super) const TRANSDUCTIVE_MARK: char = '†';

/// The footnotes of an evaluation: what [`TRANSDUCTIVE_MARK`] means, if a method has it, and [`Evaluation::notes`].
pub(super) fn footnotes(evaluation: &Evaluation) -> Vec<String> {
    let mut methods = evaluation.settings.iter().flat_map(|setting| &setting.methods);
    let explanation =
        "transductive: classifies all queries of an episode together, so each depends on the others";
    let mark =
        methods.any(|method| method.transductive).then(|| format!("{TRANSDUCTIVE_MARK} {explanation}"));
    mark.into_iter().chain(evaluation.notes()).collect()
}

/// The noise kinds of an evaluation: built-in ones first, in the order of [`NoiseKind::ALL`], then custom ones in the
/// order of the evaluation.
pub(super) fn kinds(evaluation: &Evaluation) -> Vec<NoiseKind> {
    let evaluated = |kind: &NoiseKind| evaluation.settings.iter().any(|setting| setting.noise == *kind);
    let mut kinds: Vec<NoiseKind> = NoiseKind::ALL.into_iter().filter(evaluated).collect();
    for setting in &evaluation.settings {
        if !kinds.contains(&setting.noise) {
            kinds.push(setting.noise);
        }
    }
    kinds
}

/// The name of a method in tables, with [`TRANSDUCTIVE_MARK`] if it is transductive.
pub(super) fn shown_name(method: &MethodResult) -> String {
    let mark = if method.transductive { TRANSDUCTIVE_MARK.to_string() } else { String::new() };
    format!("{}{mark}", method.method)
}

/// All tables of an evaluation except those that compare pairs of methods.
pub(super) fn all(evaluation: &Evaluation) -> Vec<Grid> {
    let kinds = || kinds(evaluation).into_iter();
    let mut grids: Vec<Grid> = kinds().filter_map(|kind| accuracy(evaluation, kind)).collect();
    grids.extend(kinds().filter_map(|kind| difference(evaluation, kind)));
    grids.extend(kinds().filter_map(|kind| gap(evaluation, kind)));
    grids.extend(kinds().filter_map(|kind| detection(evaluation, kind)));
    grids.extend(per_class(evaluation));
    grids
}

/// Accuracies under one noise kind; `None` if the episodes had no queries.
pub(super) fn accuracy(evaluation: &Evaluation, kind: NoiseKind) -> Option<Grid> {
    let title = format!("Accuracy in percent, {kind} noise");
    grid(
        evaluation,
        kind,
        title,
        |m| m.accuracy,
        |m| {
            let interval = m.ci95.map_or(String::new(), |ci| format!(" ±{ci:.2}"));
            format!("{:.2}{interval}", m.accuracy.unwrap_or(0.0))
        },
    )
}

/// Accuracy minus that of the baseline on the same episodes, with the confidence intervals of these paired differences;
/// `None` if there are none.
fn difference(evaluation: &Evaluation, kind: NoiseKind) -> Option<Grid> {
    let title = format!("Points above {} on the same episodes, {kind} noise", evaluation.baseline);
    let mut grid = grid(
        evaluation,
        kind,
        title,
        |m| m.difference.map(|d| d.mean),
        |m| {
            let interval = m.difference.and_then(|d| d.ci95).map_or(String::new(), |ci| format!(" ±{ci:.2}"));
            m.difference.map_or(String::new(), |d| format!("{:+.2}{interval}", d.mean))
        },
    )?;
    grid.rows.retain(|(name, _)| name.trim_end_matches(TRANSDUCTIVE_MARK) != evaluation.baseline);
    Some(grid).filter(|grid| !grid.rows.is_empty())
}

/// The fraction of the gap in accuracy between ProtoNet (which trusts all labels) and the oracle (which knows the wrong
/// ones) that a method closes; `None` if no result has it.
fn gap(evaluation: &Evaluation, kind: NoiseKind) -> Option<Grid> {
    let title = format!("Share of the gap from ProtoNet to Oracle closed, {kind} noise");
    let mut grid = grid(
        evaluation,
        kind,
        title,
        |m| m.gap_closed,
        |m| // Large negative values say nothing more: they depend on how small the gap is.
            m.gap_closed.map_or(String::new(), |gap| match gap {
                ..-1.0 => "below -100 %".into(),
                _ => format!("{:.0} %", 100.0 * gap),
            }),
    )?;
    grid.rows.retain(|(name, _)| name != "oracle" && name != "protonet");
    Some(grid).filter(|grid| !grid.rows.is_empty())
}

/// How well methods detect wrong labels: AUROC, average precision and, if known, the expected calibration error.
/// Methods without suspicion scores have no row.
fn detection(evaluation: &Evaluation, kind: NoiseKind) -> Option<Grid> {
    let title = format!("Finding wrong labels: AUROC / average precision, {kind} noise");
    let auroc = |m: &MethodResult| m.detection.as_ref().map(|d| d.auroc);
    let mut grid = grid(evaluation, kind, title, auroc, |m| {
        m.detection.as_ref().map_or(String::new(), |d| match d.calibration_error {
            Some(error) => format!("{:.3} / {:.3} (ECE {error:.3})", d.auroc, d.average_precision),
            None => format!("{:.3} / {:.3}", d.auroc, d.average_precision),
        })
    })?;
    grid.rows.retain(|(_, cells)| cells.iter().any(|cell| !cell.text.is_empty()));
    Some(grid)
}

/// A grid with one row per method and one column per level of a noise kind. `value` is the number by which the best
/// cell of a column is found, and `None` leaves a cell empty; `show` formats a cell. Levels without any value are
/// dropped; `None` if no level is left.
fn grid(
    evaluation: &Evaluation,
    kind: NoiseKind,
    title: String,
    value: impl Fn(&MethodResult) -> Option<f64>,
    show: impl Fn(&MethodResult) -> String,
) -> Option<Grid> {
    let has_value = |setting: &&SettingResult| setting.methods.iter().any(|method| value(method).is_some());
    let settings: Vec<&SettingResult> =
        evaluation.settings.iter().filter(|setting| setting.noise == kind).filter(has_value).collect();
    let first = settings.first()?;
    let names = std::iter::once("method".to_string()).chain(settings.iter().map(|s| percent(s.level)));
    let columns = names.collect();
    // All settings have the same methods in the same order.
    let row = |index: usize| {
        let cell = |setting: &&SettingResult| {
            let method = &setting.methods[index];
            let text = if value(method).is_some() { show(method) } else { String::new() };
            Cell { best: Some(index) == best(setting, &value), text }
        };
        (shown_name(&first.methods[index]), settings.iter().map(cell).collect())
    };
    Some(Grid { title, columns, rows: (0..first.methods.len()).map(row).collect() })
}

/// The index of the method with the highest value under one noise setting. The oracle is left out, because it
/// knows the wrong labels.
fn best(setting: &SettingResult, value: impl Fn(&MethodResult) -> Option<f64>) -> Option<usize> {
    let candidates = setting.methods.iter().enumerate().filter(|(_, method)| method.method != "oracle");
    let valued = candidates.filter_map(|(index, method)| Some((index, value(method)?)));
    valued.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(index, _)| index)
}

/// Accuracies of every class, one table per setting, if the evaluation measured them.
fn per_class(evaluation: &Evaluation) -> Vec<Grid> {
    let setting_grid = |setting: &SettingResult| {
        let classes = setting.methods.first()?.per_class.as_ref()?;
        let names = setting.methods.iter().map(shown_name);
        let columns = std::iter::once("class".to_string()).chain(names).collect();
        let row = |class: usize| {
            let cell = |method: &MethodResult| {
                let accuracy = method.per_class.as_ref().map(|classes| classes[class].accuracy);
                Cell { text: accuracy.map_or(String::new(), |a| format!("{a:.1}")), best: false }
            };
            (classes[class].class.clone(), setting.methods.iter().map(cell).collect())
        };
        let title = format!("Accuracy by class, {} noise of {}", setting.noise, percent(setting.level));
        Some(Grid { title, columns, rows: (0..classes.len()).map(row).collect() })
    };
    evaluation.settings.iter().filter_map(setting_grid).collect()
}

/// A fraction in percent: 0.333 becomes `33.3 %`.
pub(super) fn percent(level: f64) -> String {
    format!("{} %", (level * 1e4).round() / 1e2)
}

/// Differences between all pairs of methods, one table per setting: the row's method minus the column's.
pub(super) fn significance(evaluation: &Evaluation) -> Vec<Grid> {
    let setting_grid = |setting: &SettingResult| {
        let names: Vec<String> = setting.methods.iter().map(|method| method.method.clone()).collect();
        let columns = std::iter::once(String::new()).chain(setting.methods.iter().map(shown_name)).collect();
        let row = |(name, method): (&String, &MethodResult)| {
            (shown_name(method), names.iter().map(|other| compared(setting, name, other)).collect())
        };
        let title = format!(
            "Row minus column in points, {} noise of {} (in brackets: not significant)",
            setting.noise,
            percent(setting.level)
        );
        Grid { title, columns, rows: names.iter().zip(&setting.methods).map(row).collect() }
    };
    let with_comparisons = evaluation.settings.iter().filter(|setting| !setting.significance.is_empty());
    with_comparisons.map(setting_grid).collect()
}

/// The cell that compares two methods: the accuracy of `name` minus that of `other`, in points. A difference in
/// brackets is not significant at 5 % after the correction for the number of pairs, or rounds to 0.00.
fn compared(setting: &SettingResult, name: &str, other: &str) -> Cell {
    // (The difference, its corrected p-value); the evaluation has every pair in one of the two orders.
    let comparison = setting.significance.iter().find_map(|pair| {
        let (method, against) = (pair.method.as_str(), pair.against.as_str());
        match (name, other) {
            _ if (name, other) == (method, against) => Some((pair.difference, pair.p_corrected)),
            _ if (name, other) == (against, method) => Some((-pair.difference, pair.p_corrected)),
            _ => None,
        }
    });
    let text = match comparison {
        Some((difference, _)) if difference.abs() < 0.005 => "(0.00)".into(),
        Some((difference, p)) if p < 0.05 => format!("{difference:+.2}"),
        Some((difference, _)) => format!("({difference:+.2})"),
        None => String::new(),
    };
    Cell { text, best: false }
}
