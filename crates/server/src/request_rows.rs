//! From what was sent to what can be worked with: a support set, or rows that ask for their class. Runs where
//! computing is allowed, because pictures are embedded here.

use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trueshot::Embeddings;
use trueshot::embeddings::Items;
use trueshot_vision::ImageInput;
use utoipa::ToSchema;

use crate::admission::Cancellation;
use crate::body::{BodyKind, RequestBody};
use crate::json_rows::{JsonRows, QueriesJson, SupportJson};
use crate::limits::{MAX_CLASSES, MAX_DIM, MAX_ITEMS, MAX_NAME_BYTES};
use crate::multipart::{FormFile, form_files};
use crate::problem::Problem;
use crate::state::App;

/// Labelled rows that passed every check.
pub struct Support {
    /// The rows.
    pub data: Embeddings,
    /// Which labels somebody has confirmed; empty if nobody said.
    pub confirmed: Vec<bool>,
    /// Pictures that could not be read.
    pub skipped: Vec<Skipped>,
}

/// A picture that was left out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    /// The name of the file.
    pub item: String,
    /// The class it was sent for.
    pub class: String,
    /// Why it could not be used.
    pub reason: String,
}

/// Rows that ask for their class; a picture that cannot be read has a reason instead.
pub struct Queries {
    /// What they are called.
    pub items: Vec<String>,
    /// Their numbers.
    pub rows: Vec<Result<Vec<f32>, String>>,
    /// What made them, if we did.
    pub embedder: Option<String>,
}

impl Support {
    /// Understands a body.
    pub fn of(body: RequestBody, app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let RequestBody { kind, bytes } = body;
        let support = match kind {
            BodyKind::Json => Self::of_json(parse(&bytes)?)?,
            BodyKind::Arrow => {
                let data = Embeddings::receive_arrow(bytes.into(), app.limits.body as u64 * 2)?;
                Support { data, confirmed: Vec::new(), skipped: Vec::new() }
            }
            BodyKind::Form(boundary) => {
                Self::of_pictures(&form_files(&bytes, &boundary)?, app, cancellation)?
            }
        };
        check(&support.data)?;
        if support.data.classes().len() > MAX_CLASSES {
            let classes = support.data.classes().len();
            return Err(Problem::unusable(format!("{classes} classes; at most {MAX_CLASSES} are allowed")));
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

    fn of_pictures(pictures: &[FormFile], app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let classes: Vec<String> = pictures.iter().map(class_of).collect::<Result<_, _>>()?;
        let rows = embed(pictures, app, cancellation)?;
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
            let error = format!("none of the pictures can be read; {}: {}", first.item, first.reason);
            return Err(Problem::unusable(error));
        }
        let data = Embeddings::from_rows(values, app.embedder.backbone().dim(), labels)?;
        let data = data.with_items(Items::from_names(items))?.with_backbone(app.embedder.backbone().name());
        Ok(Support { data, confirmed: Vec::new(), skipped })
    }
}

impl Queries {
    /// Understands a body.
    pub fn of(body: RequestBody, app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let RequestBody { kind, bytes } = body;
        let (rows, items) = match kind {
            BodyKind::Form(boundary) => {
                return Self::of_pictures(&form_files(&bytes, &boundary)?, app, cancellation);
            }
            BodyKind::Json => {
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
            BodyKind::Arrow => {
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

    fn of_pictures(pictures: &[FormFile], app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let rows = embed(pictures, app, cancellation)?;
        let items = pictures.iter().map(|picture| picture.file.clone()).collect();
        Ok(Queries { items, rows, embedder: Some(app.embedder.backbone().name().to_owned()) })
    }
}

/// Embeds pictures; those that cannot be read have a reason instead of a row.
fn embed(
    pictures: &[FormFile],
    app: &App,
    cancellation: &Cancellation,
) -> Result<Vec<Result<Vec<f32>, String>>, Problem> {
    let usable = pictures.iter().filter_map(|picture| picture.contents.as_ref().ok());
    let given: Vec<ImageInput<'_>> = usable.map(|bytes| ImageInput::Bytes(bytes)).collect();
    let embedded = app.embedder.embed_images(&given, cancellation).map_err(|error| match error {
        trueshot_vision::Error::Core(trueshot::Error::Interrupted) => cancellation.timed_out(),
        error => Problem::failed("embedding pictures", error),
    })?;
    let made = embedded.rows.iter().filter(|row| row.is_ok()).count() - embedded.from_cache;
    app.metrics.pictures_embedded.fetch_add(made as u64, Ordering::Relaxed);
    app.metrics.pictures_from_cache.fetch_add(embedded.from_cache as u64, Ordering::Relaxed);
    let mut rows = embedded.rows.into_iter().map(|row| row.map_err(|reason| reason.to_string()));
    let row = |picture: &FormFile| match &picture.contents {
        Ok(_) => rows.next().expect("a row for every picture that was given"),
        Err(problem) => Err(problem.clone()),
    };
    Ok(pictures.iter().map(row).collect())
}

/// The class of a picture: the name of its field, or, for a field called `images`, the folder it is in.
fn class_of(picture: &FormFile) -> Result<String, Problem> {
    if picture.field != "images" {
        return match picture.field.is_empty() {
            true => {
                Err(Problem::unusable(format!("'{}' has no field name, which is its class", picture.file)))
            }
            false => Ok(picture.field.clone()),
        };
    }
    let mut folders = picture.file.rsplit(['/', '\\']).skip(1);
    let folder = folders.find(|folder| !folder.is_empty() && *folder != ".");
    folder.map(str::to_owned).ok_or_else(|| {
        let error = format!("nothing says which class '{}' is of", picture.file);
        Problem::unusable(error)
            .hint("name the field by the class, or the file 'CLASS/FILE' in a field 'images'")
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::unusable(format!("the body cannot be used: {error}")),
        _ => Problem::malformed(format!("the body is no JSON: {error}")),
    })
}

fn check_length(what: &str, length: usize, rows: &JsonRows) -> Result<(), Problem> {
    match length == rows.count {
        true => Ok(()),
        false => Err(Problem::unusable(format!("'{what}' has {length} entries for {} rows", rows.count))),
    }
}

/// What every table must keep to, whichever way it came.
fn check(data: &Embeddings) -> Result<(), Problem> {
    if data.len() > MAX_ITEMS {
        return Err(Problem::too_large(format!("{} rows; at most {MAX_ITEMS} are allowed", data.len())));
    }
    if data.dim() > MAX_DIM {
        let error = format!("rows of {} numbers; at most {MAX_DIM} are allowed", data.dim());
        return Err(Problem::too_large(error));
    }
    let classes = data.classes().iter().map(String::as_str);
    let items = (0..data.len()).filter_map(|row| data.item(row));
    if classes.chain(items).any(|name| name.len() > MAX_NAME_BYTES) {
        return Err(Problem::unusable(format!("a name has more than {MAX_NAME_BYTES} bytes")));
    }
    Ok(data.features().check()?)
}
