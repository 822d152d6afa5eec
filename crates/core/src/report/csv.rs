//! The CSV report of an evaluation: one line per noise setting and method, for spreadsheets and data frames.

use crate::csv_field::csv_field;
use crate::evaluate::{Evaluation, MethodResult, SettingResult};

/// The names of the fields; [`line`] writes them in the same order.
const HEADER: &str = "noise,level,ways,shots,queries,episodes,method,accuracy,ci95,difference,difference_ci95,\
                      gap_closed,auroc,average_precision,calibration_error,transductive,wrong_share";

/// The whole CSV file, with a header line.
pub(super) fn evaluation(evaluation: &Evaluation) -> String {
    let mut text = format!("{HEADER}\n");
    for setting in &evaluation.settings {
        for method in &setting.methods {
            text.push_str(&line(setting, method));
            text.push('\n');
        }
    }
    text
}

/// The line of one method under one noise setting. Values that do not exist are empty fields; accuracies are in
/// percent, differences in percentage points, `level` and `wrong_share` from 0 to 1.
fn line(setting: &SettingResult, method: &MethodResult) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let detection = method.detection.as_ref();
    let fields = [
        csv_field(setting.noise.name()),
        setting.level.to_string(),
        setting.ways.to_string(),
        setting.shots.to_string(),
        setting.queries.to_string(),
        setting.episodes.to_string(),
        csv_field(&method.method),
        number(method.accuracy),
        number(method.ci95),
        number(method.difference.map(|difference| difference.mean)),
        number(method.difference.and_then(|difference| difference.ci95)),
        number(method.gap_closed),
        number(detection.map(|detection| detection.auroc)),
        number(detection.map(|detection| detection.average_precision)),
        number(detection.and_then(|detection| detection.calibration_error)),
        method.transductive.to_string(),
        setting.wrong_share.to_string(),
    ];
    fields.join(",")
}
