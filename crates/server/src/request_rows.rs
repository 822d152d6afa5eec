//! Parses the body of a request into rows: [`parse_labelled_rows`] for support sets, [`Queries`] for rows to classify.
//! Embeds the images of a form, so it runs in a compute slot (see `admission`).

use std::sync::atomic::Ordering;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trueshot::Embeddings;
use trueshot::audit::ImageMeasures;
use trueshot::embeddings::Items;
use trueshot_vision::embedder::EmbeddingResult;
use trueshot_vision::{ImageInput, LabelledRows, Skipped, Unreadable};
use utoipa::ToSchema;

use crate::admission::Cancellation;
use crate::body::{BodyKind, RequestBody};
use crate::json_rows::{JsonRows, QueriesJson, SupportJson};
use crate::limits::{MAX_CLASSES, MAX_DIM, MAX_ITEMS, MAX_NAME_BYTES};
use crate::multipart::{FormFile, form_files};
use crate::problem::Problem;
use crate::state::App;

/// A picture that was left out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Skipped)]
pub struct SkippedItem {
    /// The name of the file.
    pub item: String,
    /// The class it was sent for.
    pub class: String,
    /// Why it could not be used.
    pub reason: String,
}

impl From<Skipped> for SkippedItem {
    fn from(skipped: Skipped) -> Self {
        let class = skipped.class.unwrap_or_default();
        SkippedItem { item: skipped.item, class, reason: skipped.reason.to_string() }
    }
}

/// Rows to classify; an image that cannot be read has a reason instead of a row.
pub struct Queries {
    /// The names of the rows.
    pub items: Vec<String>,
    pub rows: Vec<EmbeddingResult>,
    /// The measures of the images, one entry per row; empty for rows that are not images.
    pub measures: Vec<Option<ImageMeasures>>,
}

/// Reads the labelled rows of a body: a support set as JSON or Arrow, or images in a form.
pub fn parse_labelled_rows(
    body: RequestBody,
    app: &App,
    cancellation: &Cancellation,
) -> Result<LabelledRows, Problem> {
    let RequestBody { kind, bytes } = body;
    let rows = match kind {
        BodyKind::Json => parse_support_json(parse(&bytes)?)?,
        BodyKind::Arrow => Embeddings::receive_arrow(bytes.into(), max_unpacked(app))?.into(),
        BodyKind::Form(boundary) => embed_labelled(&form_files(&bytes, &boundary)?, app, cancellation)?,
    };
    check_rows(&rows.embeddings)?;
    if rows.embeddings.classes().len() > MAX_CLASSES {
        let classes = rows.embeddings.classes().len();
        return Err(Problem::unusable(format!("{classes} classes; at most {MAX_CLASSES} are allowed")));
    }
    Ok(rows)
}

/// The maximum length of a compressed Arrow body after decompression in bytes: twice the largest body.
fn max_unpacked(app: &App) -> u64 {
    app.limits.body as u64 * 2
}

/// Checks that all lists have one entry per row, and makes labelled rows of them.
fn parse_support_json(support: SupportJson) -> Result<LabelledRows, Problem> {
    let SupportJson { rows, labels, items, confirmed, embedder, images } = support;
    let items = items.filter(|items| !items.0.is_empty());
    let confirmed = confirmed.map_or_else(Vec::new, |confirmed| confirmed.0);
    check_length("labels", labels.0.len(), &rows)?;
    if !confirmed.is_empty() {
        check_length("confirmed", confirmed.len(), &rows)?;
    }
    let images = images.map_or_else(Vec::new, |images| images.0);
    if !images.is_empty() {
        check_length("images", images.len(), &rows)?;
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
    let measures = images.into_iter().map(|image| image.map(|image| image.0)).collect();
    Ok(LabelledRows { confirmed, measures, ..data.into() })
}

/// Embeds the images of a form, whose classes follow from their fields.
fn embed_labelled(
    files: &[FormFile],
    app: &App,
    cancellation: &Cancellation,
) -> Result<LabelledRows, Problem> {
    let classes: Vec<String> = files.iter().map(class_of).collect::<Result<_, _>>()?;
    let (rows, measures) = embed(files, app, cancellation)?;
    // If no image can be read, the error names the first one as an example.
    let first_unreadable = files.iter().zip(&rows).next().filter(|_| rows.iter().all(Result::is_err));
    if let Some((file, Err(reason))) = first_unreadable {
        let error = format!("none of the images can be read; {}: {}", file.file, reason);
        return Err(Problem::unusable(error));
    }
    let results = files.iter().zip(classes).zip(rows.into_iter().zip(measures));
    let results = results.map(|((file, class), (row, measures))| (file.file.clone(), class, row, measures));
    LabelledRows::from_results(results, app.embedder.backbone()).map_err(|error| match error {
        trueshot_vision::Error::Core(error) => error.into(),
        error => Problem::failed("embedding images", error),
    })
}

impl Queries {
    /// Reads the queries of a body: rows as JSON or Arrow, or images in a form.
    pub fn parse(body: RequestBody, app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let RequestBody { kind, bytes } = body;
        let (rows, items) = match kind {
            BodyKind::Form(boundary) => {
                return Self::embed(&form_files(&bytes, &boundary)?, app, cancellation);
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
                // Queries have no labels, but `Embeddings` needs one per row.
                let labels = vec![String::new(); rows.count];
                (Embeddings::from_rows(rows.values, rows.dim, labels)?, items.map(|items| items.into_names()))
            }
            BodyKind::Arrow => (Embeddings::receive_unlabelled_arrow(bytes.into(), max_unpacked(app))?, None),
        };
        check_rows(&rows)?;
        let name = |row: usize| rows.item(row).map_or_else(|| format!("row {row}"), str::to_owned);
        let items = items.unwrap_or_else(|| (0..rows.len()).map(name).collect());
        let values = (0..rows.len()).map(|row| Ok(rows.row(row).into_owned())).collect();
        Ok(Queries { items, rows: values, measures: Vec::new() })
    }

    /// Embeds the images of a form.
    fn embed(pictures: &[FormFile], app: &App, cancellation: &Cancellation) -> Result<Self, Problem> {
        let (rows, measures) = embed(pictures, app, cancellation)?;
        let items = pictures.iter().map(|picture| picture.file.clone()).collect();
        Ok(Queries { items, rows, measures })
    }
}

/// The row and the measures of every image of a form, or the reason why it cannot be read and `None`.
type EmbeddedForm = (Vec<EmbeddingResult>, Vec<Option<ImageMeasures>>);

/// Embeds the images of a form, and counts them in the metrics. An image that cannot be read, or whose file name cannot
/// be used, has a reason instead of a row, and no measures.
fn embed(pictures: &[FormFile], app: &App, cancellation: &Cancellation) -> Result<EmbeddedForm, Problem> {
    let usable = pictures.iter().filter_map(|picture| picture.contents.as_ref().ok());
    let images: Vec<ImageInput<'_>> = usable.map(|bytes| ImageInput::Bytes(bytes)).collect();
    let embedded = app.embedder.embed_images(&images, cancellation).map_err(|error| match error {
        trueshot_vision::Error::Core(trueshot::Error::Interrupted) => cancellation.timed_out(),
        error => Problem::failed("embedding images", error),
    })?;
    let computed = embedded.rows.iter().filter(|row| row.is_ok()).count() - embedded.from_cache;
    app.metrics.pictures_embedded.fetch_add(computed as u64, Ordering::Relaxed);
    app.metrics.pictures_from_cache.fetch_add(embedded.from_cache as u64, Ordering::Relaxed);
    // The embedder got the usable images only. Insert the reasons of the others at their positions.
    let mut rows = embedded.rows.into_iter().zip(embedded.measures);
    let row = |picture: &FormFile| match &picture.contents {
        Ok(_) => rows.next().expect("one row per image"),
        Err(problem) => (Err(Unreadable::BadName(problem.clone())), None),
    };
    Ok(pictures.iter().map(row).unzip())
}

/// The class of an image: the name of its field, or, for a field named `images`, its folder.
fn class_of(picture: &FormFile) -> Result<String, Problem> {
    if picture.field != "images" {
        if picture.field.is_empty() {
            return Err(Problem::unusable(format!(
                "the field of '{}' has no name, which would be its class",
                picture.file
            )));
        }
        return Ok(picture.field.clone());
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

/// Parses a JSON body. Valid JSON with wrong contents is 422, anything else 400.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Problem::unusable(format!("the body cannot be used: {error}")),
        _ => Problem::malformed(format!("the body is not valid JSON: {error}")),
    })
}

/// Fails if the list `what` does not have one entry per row.
fn check_length(what: &str, length: usize, rows: &JsonRows) -> Result<(), Problem> {
    if length != rows.count {
        let error = format!("'{what}' has {length} entries for {} rows", rows.count);
        return Err(Problem::unusable(error));
    }
    Ok(())
}

/// Checks the limits that apply to rows in any format, and that all their numbers are finite and not too large.
fn check_rows(data: &Embeddings) -> Result<(), Problem> {
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
