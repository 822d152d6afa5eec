//! The tables of an evaluation, before any format: which rows, which columns, what stands in the cells.
//!
//! One table a noise type, as the paper has them; the clean setting opens the first. That keeps a table within
//! 80 columns, and comparing levels of one type is what people do.

use crate::evaluate::{Evaluation, MethodResult, SettingResult};
use crate::noise::NoiseKind;

/// A table of text.
pub(super) struct Grid {
    /// What it shows.
    pub title: String,
    /// Names of the columns, the first being that of the rows' names.
    pub columns: Vec<String>,
    /// Rows of cells, without their names.
    pub rows: Vec<(String, Vec<Cell>)>,
}

#[derive(Clone, Default)]
pub(super) struct Cell {
    pub text: String,
    /// The best of its column.
    pub best: bool,
}

/// All tables worth printing.
pub(super) fn all(evaluation: &Evaluation) -> Vec<Grid> {
    let kinds =
        || NoiseKind::ALL.into_iter().filter(|&kind| evaluation.settings.iter().any(|s| s.noise == kind));
    let mut grids: Vec<Grid> = kinds().filter_map(|kind| accuracy(evaluation, kind)).collect();
    grids.extend(kinds().filter_map(|kind| difference(evaluation, kind)));
    grids.extend(kinds().filter_map(|kind| gap(evaluation, kind)));
    grids.extend(kinds().filter_map(|kind| detection(evaluation, kind)));
    grids.extend(per_class(evaluation));
    grids
}

/// Accuracies under one noise type; none without queries.
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

/// Paired differences to the baseline: their intervals are those of the difference, not of two accuracies.
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
    grid.rows.retain(|(name, _)| *name != evaluation.baseline);
    Some(grid).filter(|grid| !grid.rows.is_empty())
}

fn gap(evaluation: &Evaluation, kind: NoiseKind) -> Option<Grid> {
    let title = format!("Share of the gap from ProtoNet to Oracle closed, {kind} noise");
    let mut grid = grid(
        evaluation,
        kind,
        title,
        |m| m.gap_closed,
        |m| // How far below ProtoNet a method falls is in the accuracies; here it would drown the rest.
            m.gap_closed.map_or(String::new(), |gap| match gap {
                ..-1.0 => "below -100 %".into(),
                _ => format!("{:.0} %", 100.0 * gap),
            }),
    )?;
    grid.rows.retain(|(name, _)| name != "oracle" && name != "protonet");
    Some(grid).filter(|grid| !grid.rows.is_empty())
}

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

/// A row a method, a column a level. Columns without any value are dropped, and the grid if none is left.
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
    let row = |m: usize| {
        let cell = |setting: &&SettingResult| {
            let method = &setting.methods[m];
            let text = if value(method).is_some() { show(method) } else { String::new() };
            Cell { best: value(method).is_some() && Some(m) == best(setting, &value), text }
        };
        (first.methods[m].method.clone(), settings.iter().map(cell).collect())
    };
    Some(Grid { title, columns, rows: (0..first.methods.len()).map(row).collect() })
}

/// The method with the highest value; the oracle is no competitor.
fn best(setting: &SettingResult, value: impl Fn(&MethodResult) -> Option<f64>) -> Option<usize> {
    let fair = setting.methods.iter().enumerate().filter(|(_, method)| method.method != "oracle");
    let valued = fair.filter_map(|(place, method)| Some((place, value(method)?)));
    valued.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(place, _)| place)
}

/// Accuracy on every class, where it was asked for.
fn per_class(evaluation: &Evaluation) -> Vec<Grid> {
    let of_setting = |setting: &SettingResult| {
        let classes = setting.methods.first()?.per_class.as_ref()?;
        let names = setting.methods.iter().map(|method| method.method.clone());
        let columns = std::iter::once("class".to_string()).chain(names).collect();
        let row = |place: usize| {
            let cell = |method: &MethodResult| {
                let accuracy = method.per_class.as_ref().map(|classes| classes[place].accuracy);
                Cell { text: accuracy.map_or(String::new(), |a| format!("{a:.1}")), best: false }
            };
            (classes[place].class.clone(), setting.methods.iter().map(cell).collect())
        };
        let title = format!("Accuracy by class, {} noise of {}", setting.noise, percent(setting.level));
        Some(Grid { title, columns, rows: (0..classes.len()).map(row).collect() })
    };
    evaluation.settings.iter().filter_map(of_setting).collect()
}

/// 0.333 becomes `33.3 %`.
pub(super) fn percent(level: f64) -> String {
    format!("{} %", (level * 1e4).round() / 1e2)
}

/// Every pair of methods under every setting: the first minus the second.
pub(super) fn significance(evaluation: &Evaluation) -> Vec<Grid> {
    let of_setting = |setting: &SettingResult| {
        let names: Vec<String> = setting.methods.iter().map(|method| method.method.clone()).collect();
        let columns = std::iter::once(String::new()).chain(names.iter().cloned()).collect();
        let row = |name: &String| {
            (name.clone(), names.iter().map(|other| compared(setting, name, other)).collect())
        };
        let title =
            format!("Row minus column in points, {} noise of {}", setting.noise, percent(setting.level));
        Grid { title, columns, rows: names.iter().map(row).collect() }
    };
    let compared = evaluation.settings.iter().filter(|setting| !setting.significance.is_empty());
    compared.map(of_setting).collect()
}

/// A difference in brackets is within what chance does, corrected for the number of pairs.
fn compared(setting: &SettingResult, name: &str, other: &str) -> Cell {
    let found = setting.significance.iter().find_map(|pair| {
        let (method, against) = (pair.method.as_str(), pair.against.as_str());
        match (name, other) {
            _ if (name, other) == (method, against) => Some((pair.difference, pair.p_corrected)),
            _ if (name, other) == (against, method) => Some((-pair.difference, pair.p_corrected)),
            _ => None,
        }
    });
    let text = match found {
        Some((difference, _)) if difference.abs() < 0.005 => "(0.00)".into(),
        Some((difference, p)) if p < 0.05 => format!("{difference:+.2}"),
        Some((difference, _)) => format!("({difference:+.2})"),
        None => String::new(),
    };
    Cell { text, best: false }
}
