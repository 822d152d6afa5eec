//! [`LabelledRows`]: embeddings with labels, from which the command line and the server make audits (which labels are
//! wrong?) and classifiers. A row is the embedding of one item. Includes confirmed labels, skipped items, and the
//! images behind the rows. Start with [`LabelledRows::from_collection`] for images, or `LabelledRows::from` for
//! embeddings.

use trueshot::Embeddings;
use trueshot::audit::{Audit, AuditBuilder, ImageMeasures};
use trueshot::embeddings::Items;

use crate::backbone::Backbone;
use crate::cache::ContentHash;
use crate::embedder::{EmbeddedCollection, EmbeddingResult};
use crate::error::{Result, Skipped};
use crate::source::{Collection, ImageEntry};

/// Embeddings with labels.
pub struct LabelledRows {
    /// The rows with their labels, and with the names of their items if they have any.
    pub embeddings: Embeddings,
    /// For every row whether a user has confirmed its label; empty if no label is confirmed.
    pub confirmed: Vec<bool>,
    /// The items that could not be embedded, with the reason.
    pub skipped: Vec<Skipped>,
    /// The images behind the rows, if the rows were made from a collection of images.
    pub images: Option<RowImages>,
    /// For every row the measures of its image, if known; empty if the rows were not made from images.
    pub measures: Vec<Option<ImageMeasures>>,
}

/// The images behind labelled rows.
pub struct RowImages {
    /// Where the images come from.
    pub collection: Collection,
    /// For every row the index of its image among the entries of the collection.
    entries: Vec<u32>,
    /// For every entry of the collection the BLAKE3 hash of its file as it was embedded.
    hashes: Vec<Option<ContentHash>>,
}

impl From<Embeddings> for LabelledRows {
    fn from(embeddings: Embeddings) -> Self {
        LabelledRows {
            embeddings,
            confirmed: Vec::new(),
            skipped: Vec::new(),
            images: None,
            measures: Vec::new(),
        }
    }
}

impl LabelledRows {
    /// The rows of an embedded collection, which keep their relation to the images.
    pub fn from_collection(collection: Collection, embedded: EmbeddedCollection) -> Self {
        let EmbeddedCollection { embeddings, entries, skipped, hashes, measures, .. } = embedded;
        let images = RowImages { collection, entries, hashes };
        LabelledRows { embeddings, confirmed: Vec::new(), skipped, images: Some(images), measures }
    }

    /// The rows of embedded images, each given as item name, class, embedding and measures. Images without an embedding
    /// are listed as skipped.
    ///
    /// # Errors
    /// If none of the images has an embedding.
    pub fn from_results(
        results: impl IntoIterator<Item = (String, String, EmbeddingResult, Option<ImageMeasures>)>,
        backbone: &Backbone,
    ) -> Result<Self> {
        let (mut values, mut labels, mut items, mut skipped) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut measures = Vec::new();
        for (item, class, result, measured) in results {
            match result {
                Ok(row) => {
                    values.extend(row);
                    labels.push(class);
                    items.push(item);
                    measures.push(measured);
                }
                Err(reason) => skipped.push(Skipped { item, class: Some(class), reason }),
            }
        }
        let embeddings = Embeddings::from_rows(values, backbone.dim(), labels)?;
        let embeddings = embeddings.with_items(Items::from_names(items))?.with_backbone(backbone.name());
        Ok(LabelledRows { embeddings, confirmed: Vec::new(), skipped, images: None, measures })
    }

    /// Starts an audit of the rows, with everything that is known about them: confirmed labels, the measures of the
    /// images, and the images that cannot be read.
    pub fn audit(&self) -> AuditBuilder<'_> {
        let unreadable = self.skipped.iter().filter(|skipped| skipped.reason.is_unreadable_image());
        Audit::of(&self.embeddings)
            .confirmed(&self.confirmed)
            .image_measures(&self.measures)
            .unreadable_images(unreadable.map(|skipped| (skipped.item.clone(), skipped.class.clone())))
    }
}

impl RowImages {
    /// Whether the images are files in class folders, which can be moved.
    pub fn is_folder(&self) -> bool {
        self.collection.path().is_dir() && self.collection.has_own_files()
    }

    /// The image behind a row.
    pub fn entry(&self, row: usize) -> &ImageEntry {
        &self.collection.entries()[self.entries[row] as usize]
    }

    /// For every entry of the collection the BLAKE3 hash of its file as it was embedded; `None` if it was not read.
    pub fn hashes(&self) -> &[Option<ContentHash>] {
        &self.hashes
    }
}
