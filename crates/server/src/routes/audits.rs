//! The operation that audits a support set.

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use trueshot::audit::{Audit, Certainty, Options};
use trueshot_vision::LabelledRows;
use utoipa::IntoParams;

use super::{JsonBytes, QueryParameters};
use crate::admission::{Cancellation, response_too_long};
use crate::body::receive;
use crate::openapi::{AuditBody, Binary, PicturesBody, SupportBody};
use crate::problem::Problem;
use crate::request_rows::{SkippedItem, parse_labelled_rows};
use crate::state::SharedApp;

/// Options of an audit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditOptions {
    /// The share of wrong labels, if it is known; estimated by default.
    #[param(minimum = 0, exclusive_maximum = 1)]
    expected_noise: Option<f64>,
    /// The probability from which an action is suggested; items below it are to be reviewed.
    #[param(minimum = 0.5, maximum = 1)]
    certainty: Option<f32>,
    /// The number of most similar items to list per item.
    #[param(minimum = 0, maximum = 100)]
    neighbours: Option<usize>,
}

/// The response to an audit request.
#[derive(Serialize)]
pub struct AuditReply {
    #[serde(flatten)]
    audit: Audit,
    embedder: Option<String>,
    skipped: Vec<SkippedItem>,
}

/// Finds items with wrong labels and suggests the right ones.
#[utoipa::path(post, operation_id = "audit", path = "/api/v1/audit", tag = "labels", params(AuditOptions),
    request_body(description = "labelled rows, or images in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "one verdict per item", body = AuditBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    QueryParameters(options): QueryParameters<AuditOptions>,
    request: Request,
) -> Result<JsonBytes, Problem> {
    let options = options.to_options()?;
    let (admitted, body) = receive(&app, request).await?;
    let reply = admitted.run(move |job| {
        let support = parse_labelled_rows(body, &app, &job.cancellation)?;
        check_response_size(&support, &options, app.limits.body)?;
        let audit = audit_rows(&support, &options, &job.cancellation)?;
        let embedder = support.embeddings.backbone().map(str::to_owned);
        let skipped = support.skipped.into_iter().map(Into::into).collect();
        job.json_response(&AuditReply { audit, embedder, skipped })
    });
    Ok(JsonBytes(reply.await?))
}

impl AuditOptions {
    /// The options of the library; absent parameters have its defaults.
    fn to_options(&self) -> Result<Options, Problem> {
        let defaults = Options::default();
        let options = Options {
            certainty: self.certainty.map_or(defaults.certainty, Certainty::of_actions),
            expected_noise: self.expected_noise,
            neighbours: self.neighbours.unwrap_or(defaults.neighbours),
        };
        options.validate()?;
        Ok(options)
    }
}

/// Refuses a request whose response would be far too long, before it is computed: every item lists its neighbours and
/// their classes, and there can be eight pairs of near duplicates per item: four within classes and four across. The
/// estimate assumes that every name is as long as the longest, which is usually several times too much, so it is
/// compared with `OVERESTIMATE` times `max_bytes`. The exact limit is enforced when the response is written.
fn check_response_size(support: &LabelledRows, options: &Options, max_bytes: usize) -> Result<(), Problem> {
    /// Names in the duplicate pairs of one item: eight pairs of two names.
    const DUPLICATE_NAMES: usize = 16;
    /// Bytes of keys and numbers next to a name, roughly.
    const OTHER_BYTES: usize = 64;
    /// The assumed ratio of the estimate to the real length.
    const OVERESTIMATE: usize = 4;
    let data = &support.embeddings;
    // Without names, items are called "row 1234", which has 8 characters.
    let item_len = (0..data.len()).filter_map(|row| data.item(row)).map(str::len).max().unwrap_or(8);
    let class_len = data.classes().iter().map(String::len).max().unwrap_or(0);
    // Per item: its neighbours, the item itself, and its duplicates.
    let names = options.neighbours.min(data.len()) + 1 + DUPLICATE_NAMES;
    if data.len() * names * (item_len + class_len + OTHER_BYTES) > OVERESTIMATE * max_bytes {
        return Err(response_too_long(max_bytes));
    }
    Ok(())
}

/// Audits a support set.
pub fn audit_rows(
    support: &LabelledRows,
    options: &Options,
    cancellation: &Cancellation,
) -> Result<Audit, Problem> {
    let result = support.audit().options(options.clone()).progress(cancellation).run();
    let audit = result.map_err(|error| match error {
        trueshot::Error::Interrupted => cancellation.timed_out(),
        error => error.into(),
    })?;
    match audit.items.iter().find(|item| !item.p_wrong.is_finite()) {
        Some(item) => Err(Problem::unusable(format!(
            "the audit of {} failed: its probability is not a number; try rows with smaller values",
            item.item
        ))),
        None => Ok(audit),
    }
}

#[cfg(test)]
mod tests {
    use trueshot::Embeddings;

    use super::*;

    #[test]
    fn an_audit_reply_has_exactly_the_fields_of_its_schema() {
        let values = vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0, 0.1, 0.9, 1.0, 0.0];
        let labels = ["a", "a", "b", "b", "b"].map(str::to_owned).to_vec();
        let data = Embeddings::from_rows(values, 2, labels).unwrap();
        // So high a certainty that some items stay unsure: only those have advice.
        let certainty = Certainty { keep: 1.0, ..Certainty::of_actions(0.999_999) };
        let options = Options { certainty, ..Options::default() };
        let confirmed = [true, false, false, false, false];
        let audit = Audit::of(&data).options(options).confirmed(&confirmed).run().unwrap();
        let skipped = vec![SkippedItem { item: "x".into(), class: "a".into(), reason: "truncated".into() }];
        let reply = serde_json::to_value(AuditReply { audit, embedder: None, skipped }).unwrap();
        assert!(
            reply["items"][1]["advice"].is_string() && reply["duplicates"][0]["kind"] == "exact",
            "{reply}"
        );
        assert_eq!(reply["duplicates"][0]["label_conflict"], true);
        serde_json::from_value::<AuditBody>(reply).expect("exactly the described fields");
    }
}
