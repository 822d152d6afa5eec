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
    /// The probability that an action needs; items below it are left to review.
    #[param(minimum = 0.5, maximum = 1)]
    certainty: Option<f32>,
    /// How many of the most similar items to list per item.
    #[param(minimum = 0, maximum = 50)]
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
    fn to_options(&self) -> Result<Options, Problem> {
        let usual = Options::default();
        let options = Options {
            certainty: self.certainty.map_or(usual.certainty, Certainty::of_actions),
            expected_noise: self.expected_noise,
            neighbours: self.neighbours.unwrap_or(usual.neighbours),
        };
        options.validate()?;
        Ok(options)
    }
}

/// Refuses a request whose response would certainly be too long: every item lists its neighbours and their classes, and
/// may be a duplicate of eight others. The upper bound assumes the longest name everywhere and is several times the
/// usual length, so it may exceed the limit on responses by a factor of `SPREAD`.
fn check_response_size(support: &LabelledRows, options: &Options, most: usize) -> Result<(), Problem> {
    /// Names in the duplicate pairs of one item.
    const DUPLICATES: usize = 16;
    /// Bytes of keys and numbers next to a name.
    const REST: usize = 64;
    /// The assumed ratio of the upper bound to the real length.
    const SPREAD: usize = 4;
    let data = &support.embeddings;
    let item = (0..data.len()).filter_map(|row| data.item(row)).map(str::len).max().unwrap_or(8);
    let class = data.classes().iter().map(String::len).max().unwrap_or(0);
    let names = options.neighbours.min(data.len()) + 1 + DUPLICATES;
    match data.len() * names * (item + class + REST) > SPREAD * most {
        true => Err(response_too_long(most)),
        false => Ok(()),
    }
}

/// Audits a support set.
pub fn audit_rows(
    support: &LabelledRows,
    options: &Options,
    cancellation: &Cancellation,
) -> Result<Audit, Problem> {
    let found = support.audit().options(options.clone()).progress(cancellation).run();
    let found = found.map_err(|error| match error {
        trueshot::Error::Interrupted => cancellation.timed_out(),
        error => error.into(),
    })?;
    match found.items.iter().find(|item| !item.p_wrong.is_finite()) {
        Some(item) => Err(Problem::unusable(format!(
            "the audit of {} failed: its numbers lead to NaN or infinity",
            item.item
        ))),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use trueshot::Embeddings;

    use super::*;

    #[test]
    fn an_audit_is_what_the_description_says() {
        let values = vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0, 0.1, 0.9, 1.0, 0.0];
        let labels = ["a", "a", "b", "b", "b"].map(str::to_owned).to_vec();
        let data = Embeddings::from_rows(values, 2, labels).unwrap();
        // A certainty at which some items are unsure, which have advice.
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
