//! Attention maps of a trained TraNFS: [`AttentionMaps`] holds the attention weights of every layer and head for one
//! support set (the labelled items of a few-shot problem), which become images ([`AttentionImage`]) and JSON.
//!
//! TraNFS is a transformer that computes one prototype vector per class from a support set whose labels may be wrong.
//! Its tokens are one token per class and one per support item.
//!
//! A row of a map holds the attention that one token (the query of the attention) gives to all tokens (the columns).
//! Class tokens come first, then the items by their given class. In the images, items under a wrong label are marked
//! red, and in the last layer, whose class tokens become the prototypes, the true class of every item is written in the
//! rows of the class tokens: a good model is dark there only on items that are really of the class.

mod font;
mod image;

use serde::Serialize;
use trueshot_nn::tranfs::TranfsToken;

use crate::embeddings::Embeddings;
use crate::episode::{DrawnEpisode, EpisodeData, Item};
use crate::error::Result;
use crate::method::TrainedTranfs;

pub use image::AttentionImage;

/// A token of the transformer: what a row or a column of an attention map stands for. Classes are indices into the
/// classes of the episode ([`Episode::classes`](crate::episode::Episode::classes)).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Token {
    /// The class token of a class.
    Class {
        /// The class.
        class: u32,
        /// The name of the class.
        name: String,
    },
    /// The token of a support item.
    Item {
        /// The given class.
        given: u32,
        /// The true class; `None` for an outlier.
        truth: Option<u32>,
        /// The row of the item in the embeddings or, for an outlier, in the outlier pool.
        row: u32,
        /// The name of the item, if the file has names.
        #[serde(skip_serializing_if = "Option::is_none")]
        item: Option<String>,
        /// Whether the given class is not the true class.
        wrong: bool,
    },
}

/// The attention weights of every layer and head for one support set.
///
/// ```
/// use trueshot::attention::{AttentionMaps, Token};
///
/// let class = |class: u32| Token::Class { class, name: class.to_string() };
/// let heads = vec![vec![vec![0.9, 0.1], vec![0.1, 0.9]], vec![vec![0.5, 0.5], vec![0.5, 0.5]]];
/// let maps = AttentionMaps { episode: 0, tokens: vec![class(0), class(1)], layers: vec![heads] };
/// assert_eq!(maps.mean(0)[0], [0.7, 0.3]);
/// assert!(maps.picture(0, None).to_png().starts_with(b"\x89PNG"));
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct AttentionMaps {
    /// The number of the episode.
    pub episode: u64,
    /// The tokens, in the order of the rows and columns.
    pub tokens: Vec<Token>,
    /// Attention weights `[layers][heads][tokens][tokens]`; every row sums to 1.
    pub layers: Vec<Vec<Vec<Vec<f32>>>>,
}

impl AttentionMaps {
    /// The attention of a model on the support set of a drawn episode under the noise setting (type and level of wrong
    /// labels) with index `setting`.
    ///
    /// # Errors
    /// If the episode does not fit the model: another dimension of the features, or too many classes.
    pub fn new(
        model: &TrainedTranfs,
        data: EpisodeData<'_>,
        drawn: &DrawnEpisode,
        setting: usize,
    ) -> Result<Self> {
        let items = &drawn.supports[setting];
        let rows: Vec<Vec<f32>> = items.iter().map(|item| features(data, item)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let given: Vec<u32> = items.iter().map(|item| item.given).collect();
        let attention = model.attention(&rows, &given, drawn.episode.classes.len())?;
        let name = |class: u32| {
            let class = drawn.episode.classes[class as usize].class as usize;
            data.embeddings.classes()[class].clone()
        };
        let token = |token: &TranfsToken| match *token {
            TranfsToken::Class(class) => Token::Class { class, name: name(class) },
            TranfsToken::Item(index) => item_token(data, &items[index]),
        };
        let tokens: Vec<Token> = attention.tokens.iter().map(token).collect();
        let map = |layer: usize, head: usize| {
            attention.head(layer, head).chunks_exact(tokens.len()).map(<[f32]>::to_vec).collect()
        };
        let layer = |layer: usize| (0..attention.heads).map(|head| map(layer, head)).collect();
        Ok(AttentionMaps {
            episode: drawn.episode.index,
            layers: (0..attention.layers).map(layer).collect(),
            tokens,
        })
    }

    /// The mean `[tokens][tokens]` of the attention weights over the heads of a layer.
    pub fn mean(&self, layer: usize) -> Vec<Vec<f32>> {
        let heads = &self.layers[layer];
        let scale = 1.0 / heads.len() as f32;
        let cell =
            |row: usize, column: usize| heads.iter().map(|head| head[row][column]).sum::<f32>() * scale;
        let row = |row: usize| (0..self.tokens.len()).map(|column| cell(row, column)).collect();
        (0..self.tokens.len()).map(row).collect()
    }

    /// The head of a layer that is best at recognising true classes: the one in which the largest fraction of the class
    /// tokens' attention on items goes to items whose true class is that class. Of equal heads, the first.
    pub fn best_head(&self, layer: usize) -> usize {
        let correct_fraction = |head: &Vec<Vec<f32>>| {
            let (mut correct, mut total) = (0.0, 0.0);
            for (token, row) in self.tokens.iter().zip(head) {
                let Token::Class { class, .. } = token else { continue };
                for (attended, &attention) in self.tokens.iter().zip(row) {
                    let Token::Item { truth, .. } = attended else { continue };
                    total += attention;
                    correct += if *truth == Some(*class) { attention } else { 0.0 };
                }
            }
            correct / total.max(f32::MIN_POSITIVE)
        };
        let fractions: Vec<f32> = self.layers[layer].iter().map(correct_fraction).collect();
        // `max_by` returns the last of several maxima, so the heads are reversed to get the first.
        (0..fractions.len()).rev().max_by(|&a, &b| fractions[a].total_cmp(&fractions[b])).unwrap_or(0)
    }

    /// The image of one head of a layer, or of the mean of its heads if `head` is `None`. Layers and heads are counted
    /// from 0 here and from 1 in the title of the image.
    pub fn picture(&self, layer: usize, head: Option<usize>) -> AttentionImage {
        let map = head.map_or_else(|| self.mean(layer), |head| self.layers[layer][head].clone());
        let shown = head.map_or("mean of heads".to_string(), |head| format!("head {}", head + 1));
        let title = format!("layer {} of {}, {shown}", layer + 1, self.layers.len());
        AttentionImage::draw(&title, &self.tokens, &map, layer + 1 == self.layers.len())
    }
}

fn item_token(data: EpisodeData<'_>, item: &Item) -> Token {
    Token::Item {
        given: item.given,
        truth: item.truth,
        row: item.row,
        item: source(data, item).item(item.row as usize).map(str::to_string),
        wrong: item.is_wrong(),
    }
}

/// The embeddings that an item is a row of: the outlier pool for an outlier.
fn source<'a>(data: EpisodeData<'a>, item: &Item) -> &'a Embeddings {
    if item.truth.is_none() { data.outlier_rows() } else { data.embeddings }
}

/// The feature vector of an item.
fn features(data: EpisodeData<'_>, item: &Item) -> Vec<f32> {
    source(data, item).row(item.row as usize).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_head_attends_to_items_of_the_true_class() {
        let class = |class| Token::Class { class, name: String::new() };
        let item =
            |given, truth| Token::Item { given, truth, row: 0, item: None, wrong: truth != Some(given) };
        let tokens = vec![class(0), class(1), item(0, Some(0)), item(1, Some(0)), item(1, Some(1))];
        // A head from the attention of the two class tokens on the three items.
        let head = |first: [f32; 3], second: [f32; 3]| -> Vec<Vec<f32>> {
            let row = |items: [f32; 3]| [&[0.0, 0.0][..], &items[..]].concat();
            vec![row(first), row(second), row([0.0; 3]), row([0.0; 3]), row([0.0; 3])]
        };
        let by_labels = head([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]);
        let by_truth = head([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]);
        let uninformative = head([0.3, 0.3, 0.4], [0.3, 0.4, 0.3]);
        let maps = |heads| AttentionMaps { episode: 0, layers: vec![heads], tokens: tokens.clone() };
        assert_eq!(maps(vec![by_labels.clone(), by_truth.clone(), uninformative.clone()]).best_head(0), 1);
        assert_eq!(maps(vec![uninformative, by_labels]).best_head(0), 1);
    }
}
