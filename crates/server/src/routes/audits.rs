//! Which labels are wrong.

use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use trueshot::audit::{Audit, Certainty, Options};
use utoipa::IntoParams;

use super::{Asked, JsonBytes};
use crate::body::receive;
use crate::description::{AuditBody, Binary, PicturesBody, SupportBody};
use crate::gate::{Watch, answer_too_long};
use crate::problem::Problem;
use crate::state::{App, Shared};
use crate::support::{Skipped, Support};

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
    skipped: Vec<Skipped>,
}

/// Finds items that are filed under the wrong class, and says where they belong.
#[utoipa::path(post, operation_id = "audit", path = "/api/v1/audit", tag = "labels", params(AuditOptions),
    request_body(description = "labelled rows, or pictures in fields named by their class",
        content((SupportBody = "application/json"), (Binary = "application/vnd.apache.arrow.stream"), (Binary = "application/vnd.apache.arrow.file"), (PicturesBody = "multipart/form-data"))),
    responses(
        (status = 200, description = "a verdict for every item", body = AuditBody)))]
pub async fn post(
    State(app): State<Shared>,
    Asked(options): Asked<AuditOptions>,
    request: Request,
) -> Result<JsonBytes, Problem> {
    let options = options.checked()?;
    let (ticket, body) = receive(&app, request).await?;
    let reply = ticket.work(move |job| {
        let support = Support::of(body, &app, &job.watch)?;
        check_answer(&support, &options, app.limits.body)?;
        let audit = look(&support, &options, &app, &job.watch)?;
        let embedder = support.data.backbone().map(str::to_owned);
        job.json(&AuditReply { audit, embedder, skipped: support.skipped })
    });
    Ok(JsonBytes(reply.await?))
}

impl AuditOptions {
    fn checked(&self) -> Result<Options, Problem> {
        let usual = Options::default();
        let options = Options {
            certainty: self.certainty.map_or(usual.certainty, Certainty::uniform),
            expected_noise: self.expected_noise,
            neighbours: self.neighbours.unwrap_or(usual.neighbours),
        };
        options.validate()?;
        Ok(options)
    }
}

/// Refuses to make an answer that can only be too long: every item names its neighbours and their classes, and may be the
/// duplicate of eight others. What is made in memory is several times as long as what is sent in most cases, so a
/// support set may promise more than an answer may have, but not much more.
fn check_answer(support: &Support, options: &Options, most: usize) -> Result<(), Problem> {
    /// Names of a duplicate pair for every item.
    const DUPLICATES: usize = 16;
    /// The keys and numbers beside a name.
    const REST: usize = 64;
    /// By how much the longest name may be longer than the others.
    const SPREAD: usize = 4;
    let data = &support.data;
    let item = (0..data.len()).filter_map(|row| data.item(row)).map(str::len).max().unwrap_or(8);
    let class = data.classes().iter().map(String::len).max().unwrap_or(0);
    let names = options.neighbours.min(data.len()) + 1 + DUPLICATES;
    match data.len() * names * (item + class + REST) > SPREAD * most {
        true => Err(answer_too_long(most)),
        false => Ok(()),
    }
}

/// Looks through a support set.
pub fn look(support: &Support, options: &Options, app: &App, watch: &Watch) -> Result<Audit, Problem> {
    let found = Audit::of(&support.data)
        .head(&app.head)
        .options(options.clone())
        .confirmed(&support.confirmed)
        .progress(watch)
        .run();
    let found = found.map_err(|error| match error {
        trueshot::Error::Interrupted => watch.late(),
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
        let options = Options { certainty: Certainty::uniform(0.999_999), ..Options::default() };
        let confirmed = [true, false, false, false, false];
        let audit = Audit::of(&data).head(&head).options(options).confirmed(&confirmed).run().unwrap();
        let skipped = vec![Skipped { item: "x".into(), class: "a".into(), reason: "cut off".into() }];
        let reply = serde_json::to_value(AuditReply { audit, embedder: None, skipped }).unwrap();
        assert!(
            reply["items"][1]["advice"].is_string() && reply["duplicates"][0]["kind"] == "exact",
            "{reply}"
        );
        serde_json::from_value::<AuditBody>(reply).expect("no field more, none less");
    }
}
