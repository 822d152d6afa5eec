//! Training episodes of heads: [`TrainingEpisodes`] draws them and gathers their rows (embeddings).
//!
//! An episode is a small classification problem: a support set of items under given labels, some of them wrong, and
//! queries to classify. Its number of classes ("ways"), of items per class ("shots"), its noise type and its noise
//! level are drawn from those of the configuration.
//!
//! Everything random about an episode follows from the seed and the index of the episode, so any episode can be drawn
//! on its own. An episode is drawn as indices into the data ([`TrainingEpisode`]); the rows are gathered right before
//! they are used.

use std::ops::Range;
use std::sync::Arc;

use trueshot_nn::head;

use super::configuration::{self, CountRange};
use crate::episode::{AugmentedCopies, Episode, EpisodeData, EpisodeSpec, Item, Sampler};
use crate::error::{Error, Result};
use crate::evaluate::fetch;
use crate::noise::{Noise, NoiseKind, NoiseLevels};
use crate::rng::{IndexSampler, Purpose, Rng};

/// Draws the training episodes of a head from one or more data sets.
///
/// ```
/// use trueshot::Embeddings;
/// use trueshot::episode::EpisodeData;
/// use trueshot::rng::IndexSampler;
/// use trueshot::training::heads::{Configuration, TrainingEpisodes};
///
/// let labels = (0..200).map(|row| format!("class {}", row / 40)).collect();
/// let data = Embeddings::from_rows((0..200).map(|row| row as f32).collect(), 1, labels)?;
/// let mut options = Configuration::relabel().episodes;
/// options.noise = vec!["symmetric=0,40".parse().unwrap()];
/// let data_sets = vec![EpisodeData { embeddings: &data, outliers: None }];
/// let episodes = TrainingEpisodes::new(data_sets, &options, 0)?;
/// let drawn = episodes.draw(7, &mut IndexSampler::default())?;
/// let queries = episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| episodes[0].queries.len());
/// assert_eq!(queries, 5 * 15);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct TrainingEpisodes<'a> {
    pub(super) data_sets: Vec<EpisodeData<'a>>,
    /// `[data set][number of ways][entry of the list of shots]`, where ranges of ways are expanded to their numbers.
    /// Entries of shots that a data set is too small for are left out.
    shapes: Vec<Vec<Vec<EpisodeShape<'a>>>>,
    /// The share of blended classes and outliers.
    blended: f64,
    /// The share of episodes with mixed noise.
    mixed: f64,
    seed: u64,
}

/// The episodes of one data set with one number of ways and shots.
pub(super) struct EpisodeShape<'a> {
    pub sampler: Sampler<'a>,
    /// The noise levels that are possible, one list per noise type of the configuration; types without any possible
    /// level are left out.
    pub noises: Vec<Vec<Noise>>,
}

/// One drawn episode, as indices into the data.
pub struct TrainingEpisode {
    /// The index of the data set.
    pub(super) data_set: usize,
    /// The number of classes.
    pub(super) classes: usize,
    /// The support items, with noise.
    pub(super) items: Vec<Item>,
    /// The row of each query, and its class as an index below `classes`.
    pub(super) queries: Vec<(u32, u32)>,
    /// The items and queries whose rows are blended with other rows, at most one blend each.
    pub(super) blends: Vec<Blend>,
}

/// A support item or query whose row is blended with another row: `(1 - share) * row + share * other`.
pub(super) struct Blend {
    /// The index in the list of support items followed by queries.
    pub index: usize,
    /// The number of the other row; both rows are from the data set or both from its outliers.
    pub other: u32,
    /// The weight of the other row.
    pub share: f32,
}

impl TrainingEpisode {
    /// The row numbers of the support items, then of the queries, before blending; `true` marks rows of the outlier
    /// data instead of the data set.
    pub fn rows(&self) -> Vec<(u32, bool)> {
        let items = self.items.iter().map(|item| (item.row, item.truth.is_none()));
        items.chain(self.queries.iter().map(|&(row, _)| (row, false))).collect()
    }

    /// The labels of the support items and of the queries.
    pub fn labels(&self) -> EpisodeLabels {
        EpisodeLabels {
            classes: self.classes,
            given: self.items.iter().map(|item| item.given).collect(),
            truth: self.items.iter().map(|item| item.truth).collect(),
            query_classes: self.queries.iter().map(|&(_, class)| class).collect(),
        }
    }
}

/// The labels of an episode: class indices below `classes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpisodeLabels {
    /// The number of classes.
    pub classes: usize,
    /// The given label of each support item, possibly wrong.
    pub given: Vec<u32>,
    /// The true class of each support item; `None` for outliers.
    pub truth: Vec<Option<u32>>,
    /// The class of each query.
    pub query_classes: Vec<u32>,
}

impl EpisodeLabels {
    /// The number of support items and queries.
    pub fn rows(&self) -> usize {
        self.given.len() + self.query_classes.len()
    }

    /// The episode in the form that a head reads, with the rows of the support items followed by those of the queries.
    pub fn episode<'a>(&'a self, rows: &'a [&'a [f32]]) -> head::Episode<'a> {
        let (support, queries) = rows.split_at(self.given.len());
        head::Episode {
            classes: self.classes,
            support,
            given: &self.given,
            truth: &self.truth,
            queries,
            query_classes: &self.query_classes,
        }
    }
}

/// The smallest weight of either row in a blend: weights are between 0.35 and 0.65, so that a blend is clearly
/// different from both classes it is made of.
const MIN_SHARE: f64 = 0.35;

/// A reusable buffer for the rows of an episode that are not used as they are in the data.
#[derive(Default)]
pub struct RowBuffer {
    /// Rows that are stored in another precision than `f32`.
    decoded: Vec<f32>,
    /// Blended rows.
    blended: Vec<f32>,
}

impl<'a> TrainingEpisodes<'a> {
    /// Prepares the drawing of episodes: a sampler for every combination of data set, ways and shots, with the noise
    /// levels that are possible there.
    ///
    /// # Errors
    /// If a data set has too few classes or items, no noise level is possible for a combination, or a noise level is
    /// impossible for all of them.
    pub fn new(
        data_sets: Vec<EpisodeData<'a>>,
        episodes: &configuration::Episodes,
        seed: u64,
    ) -> Result<Self> {
        // A range of ways becomes one shape per number of classes; a range of shots is one shape, because every class
        // draws its own number of items from it.
        let ways: Vec<usize> = counts(&episodes.ways).collect();
        let spec = |ways, shots: CountRange| EpisodeSpec {
            ways,
            shots: shots.into(),
            queries: episodes.queries,
            seed,
        };
        let has_several_sets = data_sets.len() > 1;
        let shapes_of = |data: &EpisodeData<'a>| -> Result<Vec<Vec<EpisodeShape<'a>>>> {
            let images = AugmentedCopies::of(data.embeddings).map(Arc::new);
            let shape = |ways, &shots: &CountRange| {
                EpisodeShape::new(*data, images.clone(), spec(ways, shots), &episodes.noise)
            };
            ways.iter()
                .map(|&ways| shapes_that_fit(&episodes.shots, has_several_sets, |shots| shape(ways, shots)))
                .collect()
        };
        let shapes: Vec<_> = data_sets.iter().map(shapes_of).collect::<Result<_>>()?;
        check_levels_used(shapes.iter().flatten().flatten(), &episodes.noise)?;
        let (blended, mixed) = (episodes.blended, episodes.mixed);
        Ok(TrainingEpisodes { data_sets, shapes, blended, mixed, seed })
    }

    /// Draws the episode with the given index. The buffer `index_sampler` does not change the result.
    ///
    /// # Errors
    /// If the noise cannot be applied to the episode.
    pub fn draw(&self, index: u64, index_sampler: &mut IndexSampler) -> Result<TrainingEpisode> {
        self.draw_with(index, |count, rng| rng.below(count), index_sampler)
    }

    /// Like [`TrainingEpisodes::draw`], with entry number `shots` of the list of shots instead of a random one. There
    /// must be one data set.
    ///
    /// # Errors
    /// If the noise cannot be applied to the episode.
    pub fn draw_with_shots(
        &self,
        index: u64,
        shots: usize,
        index_sampler: &mut IndexSampler,
    ) -> Result<TrainingEpisode> {
        self.draw_with(index, |_, _| shots, index_sampler)
    }

    /// Draws an episode; `choose_shots` selects one of the given number of entries of the list of shots.
    fn draw_with(
        &self,
        index: u64,
        choose_shots: impl FnOnce(usize, &mut Rng) -> usize,
        index_sampler: &mut IndexSampler,
    ) -> Result<TrainingEpisode> {
        // The composition of the episode: data set, ways, shots, noise type and noise level, each uniformly at random.
        let mut rng = Rng::new(self.seed, Purpose::Training, index);
        let data_set = rng.below(self.data_sets.len());
        let by_ways = &self.shapes[data_set];
        let by_shots = &by_ways[rng.below(by_ways.len())];
        let shape = &by_shots[choose_shots(by_shots.len(), &mut rng)];
        let levels = &shape.noises[rng.below(shape.noises.len())];
        let noise = levels[rng.below(levels.len())];
        // Classes, items and queries. The sampler derives their random numbers from the seed and the index alone.
        let episode = shape.sampler.episode(index, index_sampler);
        let mut items = shape.sampler.corrupt(&episode, noise, index_sampler)?;
        if self.mixed > 0.0 && rng.fraction() < self.mixed {
            shape.mix_noise(&episode, &mut items, &mut rng, index_sampler)?;
        }
        let queries = (0..).zip(&episode.classes);
        let queries = queries.flat_map(|(class, draw)| draw.queries.iter().map(move |&row| (row, class)));
        let queries: Vec<(u32, u32)> = queries.collect();
        // The classes of the episode as indices into those of the data set.
        let classes: Vec<usize> = episode.classes.iter().map(|draw| draw.class as usize).collect();
        let blends = self.blends(data_set, &classes, &items, &queries, &mut rng);
        Ok(TrainingEpisode { data_set, classes: classes.len(), items, queries, blends })
    }

    /// Draws which rows are blended. All rows of a blended class are blended with rows of one other class, which is not
    /// in the episode, in the same proportion; a blended outlier is blended with any other outlier.
    ///
    /// `classes` are the classes of the episode as indices into those of the data set; `queries` are row and class, an
    /// index into `classes`.
    fn blends(
        &self,
        data_set: usize,
        classes: &[usize],
        items: &[Item],
        queries: &[(u32, u32)],
        rng: &mut Rng,
    ) -> Vec<Blend> {
        let data = self.data_sets[data_set];
        let (embeddings, outliers) = (data.embeddings, data.outlier_rows());
        // Without outlier data, outliers are items of the data set whose classes are not in the episode.
        let outliers_share_data = std::ptr::eq(embeddings, outliers);
        let other_classes = embeddings.classes().len() - classes.len();
        if self.blended == 0.0 {
            return Vec::new();
        }
        // For every class of the episode the other class and its weight, or `None` if the class is not blended.
        let partners: Vec<Option<(usize, f32)>> = classes
            .iter()
            .map(|_| {
                let is_blended = rng.fraction() < self.blended && other_classes > 0;
                is_blended.then(|| {
                    (random_other_class(classes, embeddings.classes().len(), rng), random_share(rng))
                })
            })
            .collect();
        // The true class of every item and query decides how its row is blended, whatever its label.
        let truths = items.iter().map(|item| item.truth);
        let truths = truths.chain(queries.iter().map(|&(_, class)| Some(class)));
        let blend = |(index, truth): (usize, Option<u32>)| match truth {
            Some(class) => partners[class as usize].map(|(partner, share)| {
                let rows = embeddings.rows_of(partner);
                Blend { index, other: rows[rng.below(rows.len())], share }
            }),
            None if rng.fraction() < self.blended => {
                let other = match outliers_share_data {
                    true => {
                        let class = random_other_class(classes, embeddings.classes().len(), rng);
                        let rows = embeddings.rows_of(class);
                        rows[rng.below(rows.len())]
                    }
                    false => rng.below(outliers.len()) as u32,
                };
                Some(Blend { index, other, share: random_share(rng) })
            }
            None => None,
        };
        truths.enumerate().filter_map(blend).collect()
    }

    /// Gathers the rows of drawn episodes and passes them to `work`. Rows that are not stored as `f32`, and blended
    /// rows, are written to `buffers`, which grows to one buffer per episode.
    pub fn with_rows<T>(
        &self,
        drawn: &[TrainingEpisode],
        buffers: &mut Vec<RowBuffer>,
        work: impl FnOnce(&[head::Episode<'_>]) -> T,
    ) -> T {
        buffers.resize_with(buffers.len().max(drawn.len()), RowBuffer::default);
        let gathered: Vec<(EpisodeLabels, Vec<&[f32]>)> = drawn
            .iter()
            .zip(buffers)
            .map(|(drawn, buffer)| (drawn.labels(), self.gather(drawn, buffer)))
            .collect();
        let episodes: Vec<head::Episode<'_>> =
            gathered.iter().map(|(labels, rows)| labels.episode(rows)).collect();
        work(&episodes)
    }

    /// Gathers the rows of one episode, `[items + queries][dim]`: support items, then queries.
    fn gather<'b>(&'b self, drawn: &TrainingEpisode, buffer: &'b mut RowBuffer) -> Vec<&'b [f32]> {
        // The rows of the episode, followed by the other row of each blend.
        let mut wanted = drawn.rows();
        let count = wanted.len();
        let others = drawn.blends.iter().map(|blend| (blend.other, wanted[blend.index].1));
        wanted.extend(others.collect::<Vec<_>>());
        let mut rows = fetch(&self.data_sets[drawn.data_set], &wanted, &mut buffer.decoded);
        let others = rows.split_off(count);
        apply_blends(&drawn.blends, &mut rows, &others, &mut buffer.blended);
        rows
    }
}

/// A random class below `count` that is not in `excluded`; at least one such class must exist.
fn random_other_class(excluded: &[usize], count: usize, rng: &mut Rng) -> usize {
    loop {
        let class = rng.below(count);
        if !excluded.contains(&class) {
            return class;
        }
    }
}

/// The weight of the other row in a blend, uniform between [`MIN_SHARE`] and 1 - [`MIN_SHARE`].
fn random_share(rng: &mut Rng) -> f32 {
    (MIN_SHARE + (1.0 - 2.0 * MIN_SHARE) * rng.fraction()) as f32
}

/// Replaces the rows that are blended by their blends, which are written to `buffer`. `others` are the other rows, one
/// per blend.
fn apply_blends<'a>(
    blends: &[Blend],
    rows: &mut [&'a [f32]],
    others: &[&'a [f32]],
    buffer: &'a mut Vec<f32>,
) {
    let dim = rows.first().map_or(0, |row| row.len());
    buffer.resize(blends.len() * dim, 0.0);
    let outs = buffer.chunks_exact_mut(dim.max(1));
    for ((&Blend { index, share, .. }, other), out) in blends.iter().zip(others).zip(outs) {
        for ((out, &value), &other) in out.iter_mut().zip(rows[index]).zip(*other) {
            *out = value + share * (other - value);
        }
        rows[index] = out;
    }
}

impl<'a> EpisodeShape<'a> {
    /// A shape with those of the given noise levels that are possible in it.
    ///
    /// # Errors
    /// If no noise level is possible, or the data has too few classes or items.
    pub fn new(
        data: EpisodeData<'a>,
        images: Option<Arc<AugmentedCopies>>,
        spec: EpisodeSpec,
        noise: &[NoiseLevels],
    ) -> Result<Self> {
        let sampler = |noises: Vec<Noise>| {
            Sampler::with_images(data.embeddings, images.clone(), data.outliers, spec, noises)
        };
        let possible = |noise: Noise| match sampler(vec![noise]) {
            Ok(_) => Ok(Some(noise)),
            Err(Error::ImpossibleNoise { .. }) => Ok(None),
            Err(other) => Err(other),
        };
        let mut noises = Vec::new();
        for levels in noise {
            let levels: Vec<Option<Noise>> = levels.0.iter().map(|&n| possible(n)).collect::<Result<_>>()?;
            noises.push(levels.into_iter().flatten().collect::<Vec<Noise>>());
        }
        noises.retain(|levels| !levels.is_empty());
        if noises.is_empty() {
            // No level is possible: the sampler returns the error for the first one.
            sampler(noise.iter().flat_map(|levels| levels.0.iter().copied()).collect())?;
        }
        Ok(EpisodeShape { sampler: sampler(noises.concat())?, noises })
    }
}

impl EpisodeShape<'_> {
    /// Turns the noise of one type, which is equally strong in all classes, into mixed noise, as people make it: some
    /// items become outliers whatever the noise type, and some wrong items become clean again. So classes differ in
    /// their noise, and a single wrong item among many occurs.
    fn mix_noise(
        &self,
        episode: &Episode,
        items: &mut [Item],
        rng: &mut Rng,
        index_sampler: &mut IndexSampler,
    ) -> Result<()> {
        let is_outlier = |noise: &&Noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0;
        let levels: Vec<Noise> = self.noises.iter().flatten().filter(is_outlier).copied().collect();
        // Outlier noise of a random level would replace some items by outliers; half of these replacements are made.
        if !levels.is_empty() {
            let outliers = self.sampler.corrupt(episode, levels[rng.below(levels.len())], index_sampler)?;
            let candidates =
                items.iter_mut().zip(outliers).filter(|(_, replacement)| replacement.truth.is_none());
            candidates.filter(|_| rng.fraction() < 0.5).for_each(|(item, outlier)| *item = outlier);
        }
        // A random share of the wrong items is replaced by the items that are at the same positions without noise. At
        // level 0, every noise type returns this clean support set, so the first one is used.
        let clean =
            self.sampler.corrupt(episode, Noise { level: 0.0, ..self.noises[0][0] }, index_sampler)?;
        let clean_share = rng.fraction();
        let wrong = items.iter_mut().zip(clean).filter(|(item, _)| item.is_wrong());
        wrong.filter(|_| rng.fraction() < clean_share).for_each(|(item, right)| *item = right);
        Ok(())
    }
}

/// The shapes of one data set for all entries of the list of shots. If there are several data sets, entries that the
/// classes of this one are too small for are left out, so that a small data set does not rule out many shots in others.
fn shapes_that_fit<'a>(
    shots: &[CountRange],
    has_several_sets: bool,
    shape: impl Fn(&CountRange) -> Result<EpisodeShape<'a>>,
) -> Result<Vec<EpisodeShape<'a>>> {
    let (mut fitting, mut error) = (Vec::new(), None);
    for shots in shots {
        match shape(shots) {
            Ok(shape) => fitting.push(shape),
            Err(too_few @ Error::TooFewItems { .. }) if has_several_sets => error = Some(too_few),
            Err(other) => return Err(other),
        }
    }
    match error {
        Some(error) if fitting.is_empty() => Err(error),
        _ => Ok(fitting),
    }
}

/// Refuses a noise level that is impossible in all shapes, because it would never be drawn.
pub(super) fn check_levels_used<'s, 'a: 's>(
    shapes: impl Iterator<Item = &'s EpisodeShape<'a>> + Clone,
    noise: &[NoiseLevels],
) -> Result<()> {
    for &noise in noise.iter().flat_map(|levels| &levels.0) {
        let is_used = shapes.clone().any(|shape| shape.noises.iter().flatten().any(|used| *used == noise));
        // The error names the last shape, as an example.
        if let Some(shape) = shapes.clone().last().filter(|_| !is_used) {
            return Err(shape.sampler.impossible(noise));
        }
    }
    Ok(())
}

/// All counts in the ranges; a count that is in several ranges is repeated and so drawn more often.
pub(super) fn counts(ranges: &[CountRange]) -> impl Iterator<Item = usize> {
    ranges.iter().flat_map(|range| range.min..=range.max)
}

/// The indices of the episodes in part number `part` of a step, whose `per_step` episodes are divided into `parts`
/// parts with at most one episode more or less than others.
pub(super) fn indices_of_part(step: u64, per_step: usize, part: usize, parts: usize) -> Range<u64> {
    let start = |part: usize| step * per_step as u64 + (part * per_step / parts) as u64;
    start(part)..start(part + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_step_contain_each_episode_once() {
        for (per_step, parts) in [(16, 4), (5, 4), (3, 4), (32, 1)] {
            let all: Vec<u64> = (0..parts).flat_map(|p| indices_of_part(7, per_step, p, parts)).collect();
            assert_eq!(all, (7 * per_step as u64..8 * per_step as u64).collect::<Vec<_>>());
        }
    }
}
