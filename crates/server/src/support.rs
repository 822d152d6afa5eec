//! Converts the body of a request to a support set or to queries. Runs among the computing requests, because images are
//! embedded here.

use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trueshot::Embeddings;
use trueshot::embeddings::Items;
use trueshot_vision::Given;
use utoipa::ToSchema;

use crate::body::{Kind, Received};
use crate::gate::Watch;
use crate::limits::{LONGEST_NAME, MOST_CLASSES, MOST_ITEMS, MOST_NUMBERS};
use crate::multipart::{Picture, pictures};
use crate::problem::Problem;
use crate::rows::{QueriesJson, Rows, SupportJson};
use crate::state::App;

/// A support set that has passed all checks.
pub struct Support {
    /// The rows.
    pub data: Embeddings,
    /// Which labels are confirmed; empty if the request does not say.
    pub confirmed: Vec<bool>,
    /// Images that could not be read.
    pub skipped: Vec<Skipped>,
}

/// An image that could not be used and was skipped.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The name of the file.
    pub item: String,
    /// The class of the image in the request.
    pub class: String,
    /// Why the image could not be used.
    pub reason: String,
}

/// Query rows; an image that cannot be read has a reason instead of a row.
pub struct Queries {
    /// The names of the queries.
    pub items: Vec<String>,
    /// The rows, or why an image cannot be read.
    pub rows: Vec<Result<Vec<f32>, String>>,
    /// The name of the server's network, if it computed the rows.
    pub embedder: Option<String>,
}

impl Support {
    /// Parses a body.
    pub fn of(body: Received, app: &App, watch: &Watch) -> Result<Self, Problem> {
        let Received { kind, bytes } = body;
        let support = match kind {
            Kind::Json => Self::of_json(parse(&bytes)?)?,
            Kind::Arrow => {
                let data = Embeddings::receive_arrow(bytes.into(), app.limits.body as u64 * 2)?;
                Support { data, confirmed: Vec::new(), skipped: Vec::new() }
            }
            Kind::Form(boundary) => Self::of_pictures(&pictures(&bytes, &boundary)?, app, watch)?,
        };
        check(&support.data)?;
        if support.data.classes().len() > MOST_CLASSES {
            let classes = support.data.classes().len();
            return Err(Problem::unusable(format!("{classes} classes; at most {MOST_CLASSES} are allowed")));
        }
        Ok(support)
    }

    fn of_json(given: SupportJson) -> Result<Self, Problem> {
        let SupportJson { rows, labels, items, confirmed, embedder } = given;
        let items = items.filter(|items| !items.0.is_empty());
        let confirmed = confirmed.map_or_else(Vec::new, |confirmed| confirmed.0);
        check_length("labels", labels.0.len(), &rows)?;
        if !confirmed.is_empty() {
            check_length("confirmed", confirmed.len(), &rows)?;
        }
        if rows.count == 0 {
            return Err(trueshot::Error::Empty.into());
        }
        if let Some(items) = &items {
            check_length("items", items.0.len(), &rows)?;
        }
        let mut data = Embeddings::from_rows(rows.values, rows.dim, labels.into_names())?;
        if let Some(items) = items {
            data = data.with_items(Items::from_names(items.into_names()))?;
        }
        if let Some(embedder) = embedder {
            data = data.with_backbone(embedder.0);
        }
        Ok(Support { data, confirmed, skipped: Vec::new() })
    }

    fn of_pictures(pictures: &[Picture], app: &App, watch: &Watch) -> Result<Self, Problem> {
        let classes: Vec<String> = pictures.iter().map(class_of).collect::<Result<_, _>>()?;
        let rows = embed(pictures, app, watch)?;
        let (mut values, mut labels, mut items, mut skipped) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ((picture, class), row) in pictures.iter().zip(classes).zip(rows) {
            let item = picture.file.clone();
            match row {
                Ok(row) => {
                    values.extend(row);
                    labels.push(class);
                    items.push(item);
                }
                Err(reason) => skipped.push(Skipped { item, class, reason }),
            }
        }
        if let (true, Some(first)) = (labels.is_empty(), skipped.first()) {
            let error = format!("none of the images can be read; {}: {}", first.item, first.reason);
            return Err(Problem::unusable(error));
        }
        let data = Embeddings::from_rows(values, app.embedder.backbone().dim(), labels)?;
        let data = data.with_items(Items::from_names(items))?.with_backbone(app.embedder.backbone().name());
        Ok(Support { data, confirmed: Vec::new(), skipped })
    }
}

impl Queries {
    /// Parses a body.
    pub fn of(body: Received, app: &App, watch: &Watch) -> Result<Self, Problem> {
        let Received { kind, bytes } = body;
        let (rows, items) = match kind {
            Kind::Form(boundary) => return Self::of_pictures(&pictures(&bytes, &boundary)?, app, watch),
            Kind::Json => {
                let QueriesJson { rows, items } = parse(&bytes)?;
                let items = items.filter(|items| !items.0.is_empty());
                if let Some(items) = &items {
                    check_length("items", items.0.len(), &rows)?;
                }
                if rows.count == 0 {
                    return Err(trueshot::Error::Empty.into());
                }
                let labels = vec![String::new(); rows.count];
                (Embeddings::from_rows(rows.values, rows.dim, labels)?, items.map(|items| items.into_names()))
            }
            Kind::Arrow => {
                (Embeddings::receive_unlabelled_arrow(bytes.into(), app.limits.body as u64 * 2)?, None)
            }
        };
        check(&rows)?;
        let name = |row: usize| rows.item(row).map_or_else(|| format!("row {row}"), str::to_owned);
        let items = items.unwrap_or_else(|| (0..rows.len()).map(name).collect());
        let numbers = |row: usize| {
            let mut out = vec![0.0; rows.dim()];
            rows.features().decode_row(row, &mut out);
            Ok(out)
        };
        Ok(Queries { items, rows: (0..rows.len()).map(numbers).collect(), embedder: None })
    }

    fn of_pictures(pictures: &[Picture], app: &App, watch: &Watch) -> Result<Self, Problem> {
        let rows = embed(pictures, app, watch)?;
        let items = pictures.iter().map(|picture| picture.file.clone()).collect();
        Ok(Queries { items, rows, embedder: Some(app.embedder.backbone().name().to_owned()) })
    }
}

/// Embeds images; those that cannot be read have a reason instead of a row.
fn embed(pictures: &[Picture], app: &App, watch: &Watch) -> Result<Vec<Result<Vec<f32>, String>>, Problem> {
    let usable = pictures.iter().filter_map(|picture| picture.contents.as_ref().ok());
    let given: Vec<Given<'_>> = usable.map(|bytes| Given::Bytes(bytes)).collect();
    let embedded = app.embedder.embed_pictures(&given, watch).map_err(|error| match error {
        trueshot_vision::Error::Core(trueshot::Error::Interrupted) => watch.late(),
        error => Problem::failed("embedding images", error),
    })?;
    let made = embedded.rows.iter().filter(|row| row.is_ok()).count() - embedded.from_cache;
    app.metrics.pictures_embedded.fetch_add(made as u64, Ordering::Relaxed);
    app.metrics.pictures_from_cache.fetch_add(embedded.from_cache as u64, Ordering::Relaxed);
    let mut rows = embedded.rows.into_iter().map(|row| row.map_err(|reason| reason.to_string()));
    let row = |picture: &Picture| match &picture.contents {
        Ok(_) => rows.next().expect("one row per image"),
        Err(problem) => Err(problem.clone()),
    };
    Ok(pictures.iter().map(row).collect())
}

/// The class of an image: the name of its field, or, in a field called `images`, the folder in the file name.
fn class_of(picture: &Picture) -> Result<String, Problem> {
    if picture.field != "images" {
        return match picture.field.is_empty() {
            true => Err(Problem::unusable(format!(
                "the field of '{}' has no name, which would be its class",
                picture.file
            ))),
            false => Ok(picture.field.clone()),
        };
    }
    let mut folders = picture.file.rsplit(['/', '\\']).skip(1);
    let folder = folders.find(|folder| !folder.is_empty() && *folder != ".");
    folder.map(str::to_owned).ok_or_else(|| {
        let error = format!("the request does not say which class '{}' belongs to", picture.file);
        Problem::unusable(error).hint(
            "use the class as the name of the field, or 'CLASS/FILE' as the file name in a field 'images'",
        )
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::unusable(format!("the body cannot be used: {error}")),
        _ => Problem::malformed(format!("the body is not valid JSON: {error}")),
    })
}

fn check_length(what: &str, length: usize, rows: &Rows) -> Result<(), Problem> {
    match length == rows.count {
        true => Ok(()),
        false => Err(Problem::unusable(format!("'{what}' has {length} entries for {} rows", rows.count))),
    }
}

/// Checks the limits that hold for rows of every format.
fn check(data: &Embeddings) -> Result<(), Problem> {
    if data.len() > MOST_ITEMS {
        return Err(Problem::too_large(format!("{} rows; at most {MOST_ITEMS} are allowed", data.len())));
    }
    if data.dim() > MOST_NUMBERS {
        let error = format!("rows of {} numbers; at most {MOST_NUMBERS} are allowed", data.dim());
        return Err(Problem::too_large(error));
    }
    let classes = data.classes().iter().map(String::as_str);
    let items = (0..data.len()).filter_map(|row| data.item(row));
    if classes.chain(items).any(|name| name.len() > LONGEST_NAME) {
        return Err(Problem::unusable(format!("a name has more than {LONGEST_NAME} bytes")));
    }
    Ok(data.features().check()?)
}
