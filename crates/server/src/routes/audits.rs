//! The operation that audits a support set.

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use trueshot::audit::{Audit, Certainty, Options, audit};
use trueshot_vision::LabelledRows;
use utoipa::IntoParams;

use super::{JsonBytes, QueryParameters};
use crate::admission::{Cancellation, response_too_long};
use crate::body::receive;
use crate::openapi::{AuditBody, Binary, PicturesBody, SupportBody};
use crate::problem::Problem;
use crate::request_rows::{SkippedItem, parse_labelled_rows};
use crate::state::{App, SharedApp};

/// How to look.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditOptions {
    /// The share of wrong labels, from somebody who knows it.
    #[param(minimum = 0, exclusive_maximum = 1)]
    expected_noise: Option<f64>,
    /// How sure a verdict must be.
    #[param(minimum = 0.5, maximum = 1)]
    certainty: Option<f32>,
    /// How many neighbours to name.
    #[param(minimum = 0, maximum = 50)]
    neighbours: Option<usize>,
}

/// What was found.
#[derive(Serialize)]
pub struct AuditReply {
    #[serde(flatten)]
    audit: Audit,
    embedder: Option<String>,
    skipped: Vec<SkippedItem>,
}

/// Finds items that are filed under the wrong class, and says where they belong.
#[utoipa::path(post, operation_id = "audit", path = "/api/v1/audit", tag = "labels", params(AuditOptions),
    request_body(description = "labelled rows, or pictures in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "a verdict for every item", body = AuditBody)))]
pub async fn post(
    State(app): State<SharedApp>,
    QueryParameters(options): QueryParameters<AuditOptions>,
    request: Request,
) -> Result<JsonBytes, Problem> {
    let options = options.into_options()?;
    let (admitted, body) = receive(&app, request).await?;
    let reply = admitted.run(move |job| {
        let support = parse_labelled_rows(body, &app, &job.cancellation)?;
        check_response_size(&support, &options, app.limits.body)?;
        let audit = audit_rows(&support, &options, &app, &job.cancellation)?;
        let embedder = support.embeddings.backbone().map(str::to_owned);
        let skipped = support.skipped.into_iter().map(Into::into).collect();
        job.json_response(&AuditReply { audit, embedder, skipped })
    });
    Ok(JsonBytes(reply.await?))
}

impl AuditOptions {
    fn into_options(&self) -> Result<Options, Problem> {
        let usual = Options::default();
        let outside = |what: &str, given: &dyn std::fmt::Display, allowed: &str| {
            Problem::unusable(format!("{what} is {given}; allowed: {allowed}"))
        };
        if let Some(share) = self.expected_noise.filter(|share| !(0.0..1.0).contains(share)) {
            return Err(outside("expected_noise", &share, "a share from 0 to below 1"));
        }
        if let Some(sure) = self.certainty.filter(|sure| !(0.5..=1.0).contains(sure)) {
            return Err(outside("certainty", &sure, "a probability from 0.5 to 1"));
        }
        if let Some(count) = self.neighbours.filter(|count| *count > 50) {
            return Err(outside("neighbours", &count, "0 to 50"));
        }
        Ok(Options {
            certainty: self.certainty.map_or(usual.certainty, Certainty::of_all),
            expected_noise: self.expected_noise,
            neighbours: self.neighbours.unwrap_or(usual.neighbours),
        })
    }
}

/// Refuses to make an answer that can only be too long: every item names its neighbours and their classes, and may be the
/// duplicate of eight others. What is made in memory is several times as long as what is sent in most cases, so a
/// support set may promise more than an answer may have, but not much more.
fn check_response_size(support: &LabelledRows, options: &Options, most: usize) -> Result<(), Problem> {
    /// Names of a duplicate pair for every item.
    const DUPLICATES: usize = 16;
    /// The keys and numbers beside a name.
    const REST: usize = 64;
    /// By how much the longest name may be longer than the others.
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

/// Looks through a support set.
pub fn audit_rows(
    support: &LabelledRows,
    options: &Options,
    app: &App,
    cancellation: &Cancellation,
) -> Result<Audit, Problem> {
    let found = audit(&support.embeddings, &app.head, options, &support.confirmed, cancellation);
    let found = found.map_err(|error| match error {
        trueshot::Error::Interrupted => cancellation.timed_out(),
        error => error.into(),
    })?;
    match found.items.iter().find(|item| !item.p_wrong.is_finite()) {
        Some(item) => {
            Err(Problem::unusable(format!("nothing can be said of {}: its numbers lead to none", item.item)))
        }
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use trueshot::Embeddings;
    use trueshot::method::TrainedRelabel;

    use super::*;

    #[test]
    fn an_audit_is_what_the_description_says() {
        let values = vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0, 0.1, 0.9, 1.0, 0.0];
        let labels = ["a", "a", "b", "b", "b"].map(str::to_owned).to_vec();
        let data = Embeddings::from_rows(values, 2, labels).unwrap();
        let head = TrainedRelabel::built_in().unwrap();
        // So sure that something is left open, which has advice.
        let options = Options { certainty: Certainty::of_all(0.999_999), ..Options::default() };
        let confirmed = [true, false, false, false, false];
        let audit = audit(&data, &head, &options, &confirmed, &()).unwrap();
        let skipped = vec![SkippedItem { item: "x".into(), class: "a".into(), reason: "cut off".into() }];
        let reply = serde_json::to_value(AuditReply { audit, embedder: None, skipped }).unwrap();
        assert!(
            reply["items"][1]["advice"].is_string() && reply["duplicates"][0]["kind"] == "exact",
            "{reply}"
        );
        serde_json::from_value::<AuditBody>(reply).expect("no field more, none less");
    }
}
