//! Where a trained TraNFS looks: for one support set the attention of every layer and head, as pictures and JSON.
//!
//! Rows look at columns; both are the class tokens first, then the items by the class they are filed under. Items
//! under a wrong label are marked, and in the last layer, whose class tokens become the prototypes, the true
//! class of every item is written where the class tokens look at it: a model that does its work is dark there on
//! the right items only.

mod font;
mod image;

use serde::Serialize;
use trueshot_nn::tranfs::TranfsToken;

use crate::embeddings::Embeddings;
use crate::episode::{DrawnEpisode, EpisodeData, Item};
use crate::error::Result;
use crate::method::TrainedTranfs;

pub use image::AttentionImage;

/// What a row or a column stands for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Token {
    /// A class.
    Class {
        /// Its place in the episode.
        class: u32,
        /// Its name.
        name: String,
    },
    /// A support item.
    Item {
        /// The class it is filed under.
        given: u32,
        /// The class it comes from; none for an outlier.
        truth: Option<u32>,
        /// Its row in the embeddings, or in the outliers.
        row: u32,
        /// Its name, where the file has names.
        #[serde(skip_serializing_if = "Option::is_none")]
        item: Option<String>,
        /// Whether its label is wrong.
        wrong: bool,
    },
}

/// The attention of every layer and head for one support set.
#[derive(Debug, Clone, Serialize)]
pub struct AttentionMaps {
    /// The number of the episode.
    pub episode: u64,
    /// What rows and columns stand for.
    pub tokens: Vec<Token>,
    /// By layer, head and row: how much the row's token looks at every column's. Rows sum to 1.
    pub layers: Vec<Vec<Vec<Vec<f32>>>>,
}

impl AttentionMaps {
    /// The attention of a model for one support set of a drawn episode.
    pub fn of(
        model: &TrainedTranfs,
        bank: EpisodeData<'_>,
        drawn: &DrawnEpisode,
        setting: usize,
    ) -> Result<Self> {
        let items = &drawn.supports[setting];
        let rows: Vec<Vec<f32>> = items.iter().map(|item| features(bank, item)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let given: Vec<u32> = items.iter().map(|item| item.given).collect();
        let found = model.attention(&rows, &given, drawn.episode.classes.len())?;
        let name = |class: u32| {
            let class = drawn.episode.classes[class as usize].class as usize;
            bank.embeddings.classes()[class].clone()
        };
        let token = |token: &TranfsToken| match *token {
            TranfsToken::Class(class) => Token::Class { class, name: name(class) },
            TranfsToken::Item(place) => item_token(bank, &items[place]),
        };
        let tokens: Vec<Token> = found.tokens.iter().map(token).collect();
        let map = |layer: usize, head: usize| {
            found.head(layer, head).chunks_exact(tokens.len()).map(<[f32]>::to_vec).collect()
        };
        let layer = |layer: usize| (0..found.heads).map(|head| map(layer, head)).collect();
        Ok(AttentionMaps {
            episode: drawn.episode.index,
            layers: (0..found.layers).map(layer).collect(),
            tokens,
        })
    }

    /// The mean over the heads of a layer.
    pub fn mean(&self, layer: usize) -> Vec<Vec<f32>> {
        let heads = &self.layers[layer];
        let share = 1.0 / heads.len() as f32;
        let cell =
            |row: usize, column: usize| heads.iter().map(|head| head[row][column]).sum::<f32>() * share;
        let row = |row: usize| (0..self.tokens.len()).map(|column| cell(row, column)).collect();
        (0..self.tokens.len()).map(row).collect()
    }

    /// The head of a layer whose class tokens look most at items that are really of their class, of all that they give
    /// to items.
    pub fn best_head(&self, layer: usize) -> usize {
        let share = |head: &Vec<Vec<f32>>| {
            let (mut right, mut all) = (0.0, 0.0);
            for (token, row) in self.tokens.iter().zip(head) {
                let Token::Class { class, .. } = token else { continue };
                for (seen, &attention) in self.tokens.iter().zip(row) {
                    let Token::Item { truth, .. } = seen else { continue };
                    all += attention;
                    right += if *truth == Some(*class) { attention } else { 0.0 };
                }
            }
            right / all.max(f32::MIN_POSITIVE)
        };
        let shares: Vec<f32> = self.layers[layer].iter().map(share).collect();
        (0..shares.len()).rev().max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap_or(0)
    }

    /// The picture of one head, or of the mean of all.
    pub fn picture(&self, layer: usize, head: Option<usize>) -> AttentionImage {
        let map = head.map_or_else(|| self.mean(layer), |head| self.layers[layer][head].clone());
        let which = head.map_or("mean of heads".to_string(), |head| format!("head {}", head + 1));
        let title = format!("layer {} of {}, {which}", layer + 1, self.layers.len());
        AttentionImage::draw(&title, &self.tokens, &map, layer + 1 == self.layers.len())
    }
}

fn item_token(bank: EpisodeData<'_>, item: &Item) -> Token {
    Token::Item {
        given: item.given,
        truth: item.truth,
        row: item.row,
        item: source(bank, item).item(item.row as usize).map(str::to_string),
        wrong: item.is_wrong(),
    }
}

fn source<'a>(bank: EpisodeData<'a>, item: &Item) -> &'a Embeddings {
    let pool = bank.outliers.filter(|_| item.truth.is_none());
    pool.unwrap_or(bank.embeddings)
}

fn features(bank: EpisodeData<'_>, item: &Item) -> Vec<f32> {
    let features = source(bank, item).features();
    let mut row = vec![0.0; features.dim()];
    features.decode_row(item.row as usize, &mut row);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_head_is_the_one_whose_class_tokens_look_at_items_of_their_class() {
        let class = |class| Token::Class { class, name: String::new() };
        let item =
            |given, truth| Token::Item { given, truth, row: 0, item: None, wrong: truth != Some(given) };
        let tokens = vec![class(0), class(1), item(0, Some(0)), item(1, Some(0)), item(1, Some(1))];
        // Each head: what the two class tokens give to the three items.
        let head = |first: [f32; 3], second: [f32; 3]| -> Vec<Vec<f32>> {
            let row = |items: [f32; 3]| [&[0.0, 0.0][..], &items[..]].concat();
            vec![row(first), row(second), row([0.0; 3]), row([0.0; 3]), row([0.0; 3])]
        };
        let by_labels = head([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]);
        let by_truth = head([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]);
        let by_nothing = head([0.3, 0.3, 0.4], [0.3, 0.4, 0.3]);
        let maps = |heads| AttentionMaps { episode: 0, layers: vec![heads], tokens: tokens.clone() };
        assert_eq!(maps(vec![by_labels.clone(), by_truth.clone(), by_nothing.clone()]).best_head(0), 1);
        assert_eq!(maps(vec![by_nothing, by_labels]).best_head(0), 1);
    }
}
