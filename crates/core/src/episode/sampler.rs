//! The episode sampler: [`Sampler`] draws the classes, support items (the labelled items) and queries (the items to
//! classify) of an episode and applies label noise, once for every noise setting, that is for every type and level.
//! [`Sampler::draw`] does both; [`DefaultNoise`] has the noise settings of evaluations that choose none.
//!
//! Every random decision uses a generator keyed by its purpose and the number of the episode, so an episode does not
//! depend on other episodes nor on the other noise settings. All settings are checked when the sampler is made.

use std::sync::Arc;

use super::{
    AugmentedCopies, ClassDraw, DrawnEpisode, Episode, EpisodeData, EpisodeSpec, Episodes, Item, corrupt,
};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::noise::{CleanSupport, LabelNoise, Noise, NoiseKind, NoiseLevels, NoiseName};
use crate::rng::{IndexSampler, Purpose, Rng};

/// Draws the episodes of an experiment by number, in any order.
///
/// ```
/// use trueshot::episode::{EpisodeSpec, Episodes, Sampler, Shots};
/// use trueshot::noise::{Noise, NoiseKind};
///
/// let labels = (0..80).map(|row| format!("class {}", row % 4)).collect();
/// let data = trueshot::Embeddings::from_rows((0..80).map(|row| row as f32).collect(), 1, labels)?;
/// let spec = EpisodeSpec { ways: 3, shots: Shots::exactly(5), queries: 2, seed: 1 };
/// let sampler = Sampler::new(&data, None, spec, vec![Noise::new(NoiseKind::Paired, 0.4)?])?;
/// let drawn = sampler.draw(7, &mut Default::default())?;
/// assert_eq!(drawn.supports[0].iter().filter(|item| item.is_wrong()).count(), 3 * 2);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Sampler<'a> {
    embeddings: &'a Embeddings,
    /// The rows grouped by image, if some rows are augmented copies of the same image; `None` if every row is an image.
    images: Option<Arc<AugmentedCopies>>,
    spec: EpisodeSpec,
    noises: Vec<Noise>,
    outliers: OutlierPool<'a>,
    /// Custom noise types. Their settings are the last elements of `noises`.
    label_noises: Vec<Box<dyn LabelNoise + 'a>>,
}

/// The rows that outlier noise draws from.
enum OutlierPool<'a> {
    /// Separate embeddings.
    Separate(&'a Embeddings),
    /// The embeddings themselves: all classes that are not in the episode.
    OtherClasses,
}

impl<'a> Sampler<'a> {
    /// A sampler for a shape of episodes and noise settings. Without `outliers`, or if they are the same object as
    /// `embeddings`, the outliers of an episode come from the classes that are not in it.
    ///
    /// # Errors
    /// If some episode could not be drawn under some setting: too few classes or items, an impossible noise level, or
    /// outliers that are too few or of another dimension.
    pub fn new(
        embeddings: &'a Embeddings,
        outliers: Option<&'a Embeddings>,
        spec: EpisodeSpec,
        noises: Vec<Noise>,
    ) -> Result<Self> {
        let images = AugmentedCopies::of(embeddings).map(Arc::new);
        Self::with_images(embeddings, images, outliers, spec, noises)
    }

    /// Like [`Sampler::new`], with the augmented copies already grouped by image.
    pub(crate) fn with_images(
        embeddings: &'a Embeddings,
        images: Option<Arc<AugmentedCopies>>,
        outliers: Option<&'a Embeddings>,
        spec: EpisodeSpec,
        noises: Vec<Noise>,
    ) -> Result<Self> {
        spec.check()?;
        check_items(embeddings, images.as_deref(), &spec)?;
        for &noise in &noises {
            check_noise(noise, &spec)?;
            if noise.kind == NoiseKind::Outlier {
                check_outliers(noise, &spec, embeddings, outliers)?;
            }
        }
        let outliers = match outliers {
            Some(pool) if !std::ptr::eq(pool, embeddings) => OutlierPool::Separate(pool),
            _ => OutlierPool::OtherClasses,
        };
        Ok(Sampler { embeddings, images, spec, noises, outliers, label_noises: Vec::new() })
    }

    /// Adds a custom noise type as the last noise setting.
    ///
    /// # Errors
    /// If its name is not allowed, or it does not fit the data.
    pub fn with_noise(mut self, noise: Box<dyn LabelNoise + 'a>) -> Result<Self> {
        let name = NoiseName::new(noise.name())
            .map_err(|problem| Error::BadNoise { text: noise.name().into(), problem })?;
        noise.check(self.embeddings)?;
        if let OutlierPool::Separate(pool) = self.outliers {
            check_outlier_dimension(pool, self.embeddings)?;
        }
        self.noises.push(Noise { kind: NoiseKind::Named(name), level: noise.expected_share() });
        self.label_noises.push(noise);
        Ok(self)
    }

    /// The support set of an episode under the custom noise type at `position` in `label_noises`.
    fn relabel(&self, episode: &Episode, position: usize) -> Result<Vec<Item>> {
        let noise = &self.label_noises[position];
        let outliers = match self.outliers {
            OutlierPool::Separate(pool) => Some(pool),
            OutlierPool::OtherClasses => None,
        };
        let data = EpisodeData { embeddings: self.embeddings, outliers };
        // The classes with their indices in the episode, which are the labels.
        let classes = || (0..).zip(&episode.classes);
        let support = CleanSupport {
            episode,
            rows: classes().flat_map(|(_, draw)| draw.support.iter().copied()).collect(),
            labels: classes().flat_map(|(class, draw)| vec![class; draw.support.len()]).collect(),
            data,
        };
        let mut rng = Rng::for_item(self.spec.seed, Purpose::LabelNoise, position as u64, episode.index);
        let labels = noise.relabel(&support, &mut rng)?;
        corrupt::relabelled(episode, &labels, &data).map_err(|problem| Error::NoiseFailed {
            noise: noise.name().into(),
            episode: episode.index,
            problem,
        })
    }

    /// Draws an episode without noise. `index_sampler` is scratch memory.
    pub fn episode(&self, index: u64, index_sampler: &mut IndexSampler) -> Episode {
        let EpisodeSpec { ways, shots, queries, seed } = self.spec;
        let mut item_rng = Rng::new(seed, Purpose::Items, index);
        let mut shots_rng = Rng::new(seed, Purpose::Shots, index);
        let mut noise_order_rng = Rng::new(seed, Purpose::NoiseOrder, index);
        let mut copy_rng = Rng::new(seed, Purpose::Copies, index);
        // Every class draws enough items for the largest support set, a noise pool of the same size and the queries, so
        // that its number of shots does not influence what other classes draw.
        let classes = index_sampler.draw(&mut item_rng, self.embeddings.classes().len(), ways);
        let draw_class = |class: u32| {
            // The number of shots of this class.
            let count = shots.min + shots_rng.below(shots.max - shots.min + 1);
            let images = count_images(self.embeddings, self.images.as_deref(), class as usize);
            let drawn = index_sampler.draw(&mut item_rng, images, 2 * shots.max + queries);
            let rows = self.rows(class as usize, drawn, &mut copy_rng);
            // The first `shots.max` rows are for the support set, the next `shots.max` for the pool, the last for the
            // queries.
            let take = |range: std::ops::Range<usize>| rows[range].to_vec();
            let mut noise_order: Vec<u32> = (0..count as u32).collect();
            noise_order_rng.shuffle(&mut noise_order);
            ClassDraw {
                class,
                support: take(0..count),
                pool: take(shots.max..shots.max + count),
                queries: take(2 * shots.max..2 * shots.max + queries),
                noise_order,
            }
        };
        Episode { index, classes: classes.into_iter().map(draw_class).collect() }
    }

    /// The error for a noise setting that is impossible for episodes of this shape.
    pub(crate) fn impossible(&self, noise: Noise) -> Error {
        impossible(noise, &self.spec)
    }

    /// Turns indices of images within a class into rows, choosing one of the copies of each image at random.
    fn rows(&self, class: usize, mut images: Vec<u32>, copy_rng: &mut Rng) -> Vec<u32> {
        // Every index is overwritten with its row.
        let all = self.embeddings.rows_of(class);
        images.iter_mut().for_each(|image| {
            *image = match &self.images {
                None => all[*image as usize],
                Some(images) => {
                    let rows = images.rows(class, *image as usize);
                    rows[copy_rng.below(rows.len())]
                }
            }
        });
        images
    }

    /// The support set of an episode under a built-in noise setting. `index_sampler` is scratch memory.
    pub fn corrupt(
        &self,
        episode: &Episode,
        noise: Noise,
        index_sampler: &mut IndexSampler,
    ) -> Result<Vec<Item>> {
        let replacements = match noise.kind {
            _ if noise.level == 0.0 => Some(corrupt::no_replacements(episode)),
            NoiseKind::Symmetric => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Symmetric, episode.index);
                corrupt::symmetric(episode, noise, &mut rng)
            }
            NoiseKind::Paired => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Paired, episode.index);
                corrupt::paired(episode, noise, &mut rng)
            }
            NoiseKind::Similar => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Similar, episode.index);
                corrupt::similar(episode, noise, &mut rng, self.embeddings.features())
            }
            NoiseKind::Named(name) => {
                let problem = "it is not built in; add it with Sampler::with_noise".to_string();
                return Err(Error::BadNoise { text: name.as_str().into(), problem });
            }
            NoiseKind::Outlier => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Outlier, episode.index);
                Some(match self.outliers {
                    OutlierPool::Separate(pool) => {
                        corrupt::outlier(episode, noise, &mut rng, pool.len(), index_sampler)
                    }
                    OutlierPool::OtherClasses => {
                        self.outliers_from_other_classes(episode, noise, &mut rng, index_sampler)
                    }
                })
            }
        };
        let replacements = replacements.ok_or_else(|| self.impossible(noise))?;
        Ok(corrupt::support_set(episode, &replacements))
    }

    /// Outliers drawn uniformly from all rows of the classes that are not in the episode.
    fn outliers_from_other_classes(
        &self,
        episode: &Episode,
        noise: Noise,
        rng: &mut Rng,
        index_sampler: &mut IndexSampler,
    ) -> corrupt::Replacements {
        let is_in_episode = |class: usize| episode.classes.iter().any(|draw| draw.class as usize == class);
        let others = || (0..self.embeddings.classes().len()).filter(|&class| !is_in_episode(class));
        // The number of rows to draw from.
        let rows = others().map(|class| self.embeddings.rows_of(class).len()).sum();
        let mut replacements = corrupt::outlier(episode, noise, rng, rows, index_sampler);
        // Indices into the concatenated rows of the other classes become rows of the embeddings.
        for (index, _) in replacements.iter_mut().flatten() {
            let mut index_in_class = *index as usize;
            for class in others() {
                let rows = self.embeddings.rows_of(class);
                if let Some(&row) = rows.get(index_in_class) {
                    *index = row;
                    break;
                }
                index_in_class -= rows.len();
            }
        }
        replacements
    }
}

impl Episodes for Sampler<'_> {
    fn spec(&self) -> &EpisodeSpec {
        &self.spec
    }

    fn noises(&self) -> &[Noise] {
        &self.noises
    }

    fn draw(&self, index: u64, index_sampler: &mut IndexSampler) -> Result<DrawnEpisode> {
        let episode = self.episode(index, index_sampler);
        let built_in = &self.noises[..self.noises.len() - self.label_noises.len()];
        let supports = built_in.iter().map(|&noise| self.corrupt(&episode, noise, index_sampler));
        let custom = (0..self.label_noises.len()).map(|position| self.relabel(&episode, position));
        let supports = supports.chain(custom).collect::<Result<_>>()?;
        Ok(DrawnEpisode { episode, supports })
    }

    fn is_sequential(&self) -> bool {
        self.label_noises.iter().any(|noise| noise.is_sequential())
    }
}

/// The number of different images of a class: its rows, unless some of them are augmented copies.
fn count_images(embeddings: &Embeddings, images: Option<&AugmentedCopies>, class: usize) -> usize {
    images.map_or_else(|| embeddings.rows_of(class).len(), |images| images.count(class))
}

/// Checks that there are enough classes, and enough items in each for the support set, the noise pool (as many items as
/// the support set) and the queries.
fn check_items(embeddings: &Embeddings, images: Option<&AugmentedCopies>, spec: &EpisodeSpec) -> Result<()> {
    let classes = embeddings.classes();
    if spec.ways > classes.len() {
        return Err(Error::TooFewClasses { ways: spec.ways, classes: classes.len() });
    }
    let need = spec.shots.max.saturating_mul(2).saturating_add(spec.queries);
    let count = |class: usize| count_images(embeddings, images, class);
    let smallest = (0..classes.len()).min_by_key(|&class| count(class));
    match smallest.map(|class| (class, count(class))) {
        Some((class, have)) if have < need => Err(Error::TooFewItems {
            class: classes[class].clone(),
            have,
            shots: spec.shots.max,
            queries: spec.queries,
            need,
        }),
        _ => Ok(()),
    }
}

fn check_noise(noise: Noise, spec: &EpisodeSpec) -> Result<()> {
    if is_possible(noise, spec) { Ok(()) } else { Err(impossible(noise, spec)) }
}

/// Whether every episode has a valid draw, whatever numbers of shots its classes get: the level must be possible if all
/// classes have the same size, for every size, and for a class of the largest size among classes of the smallest.
fn is_possible(noise: Noise, spec: &EpisodeSpec) -> bool {
    let EpisodeSpec { ways, shots, .. } = *spec;
    let mut sizes = shots.min..=shots.max;
    let with_equal_sizes = sizes.all(|shots| noise.kind.is_possible(ways, shots, noise.noisy_items(shots)));
    let noisy = noise.noisy_items(shots.max);
    let with_smallest_others = match noise.kind {
        // Each other class contributes at most its pool (`shots.min` items) and fewer items than remain clean.
        NoiseKind::Symmetric | NoiseKind::Similar => {
            (ways - 1) * shots.min.min((shots.max - noisy).saturating_sub(1)) >= noisy
        }
        // One other class contributes all wrong items from its pool.
        NoiseKind::Paired => shots.min >= noisy,
        NoiseKind::Outlier | NoiseKind::Named(_) => true,
    };
    with_equal_sizes && with_smallest_others
}

/// The noise settings of an evaluation that does not choose any.
///
/// ```
/// use trueshot::episode::{DefaultNoise, EpisodeSpec};
///
/// let one_shot = EpisodeSpec { shots: 1.into(), ..EpisodeSpec::default() };
/// let noise = DefaultNoise::of(&one_shot);
/// assert_eq!(noise.settings.len(), 1);
/// assert_eq!(
///     noise.note(&one_shot).unwrap(),
///     "symmetric noise of 20, 40, 60 % is left out: it is impossible with 5 ways and 1 shot"
/// );
/// ```
pub struct DefaultNoise {
    /// The levels of [`NoiseLevels::default`] that are possible.
    pub settings: Vec<Noise>,
    /// The other levels: those that are impossible, or so low that no label of the smallest class would be wrong.
    pub left_out: Vec<Noise>,
}

/// A number of shots above that of any data. [`DefaultNoise`] does not check noise for larger ranges of shots, because
/// the check tries every number in the range.
const MAX_SHOTS: usize = 1 << 24;

impl DefaultNoise {
    /// The settings for episodes of a shape.
    pub fn of(spec: &EpisodeSpec) -> Self {
        let is_usable = |noise: &Noise| {
            let is_noisy = noise.level == 0.0 || noise.noisy_items(spec.shots.min) > 0;
            is_noisy && is_possible(*noise, spec)
        };
        // For an invalid shape all settings are kept, so that the sampler reports the shape and not the noise.
        let is_valid = spec.check().is_ok() && spec.shots.max <= MAX_SHOTS;
        let all = NoiseLevels::default().0;
        let (settings, left_out) = all.into_iter().partition(|noise| !is_valid || is_usable(noise));
        DefaultNoise { settings, left_out }
    }

    /// A sentence about the levels that are left out; `None` if there are none.
    pub fn note(&self, spec: &EpisodeSpec) -> Option<String> {
        let kind = self.left_out.first()?.kind;
        let levels: Vec<String> = self.left_out.iter().map(|noise| noise.percent().to_string()).collect();
        let shots = if spec.shots.max == 1 { "shot" } else { "shots" };
        Some(format!(
            "{kind} noise of {} % is left out: it is impossible with {} ways and {} {shots}",
            levels.join(", "),
            spec.ways,
            spec.shots
        ))
    }
}

/// The error for an impossible noise setting, with the levels that are possible.
fn impossible(noise: Noise, spec: &EpisodeSpec) -> Error {
    let shots = spec.shots.max;
    // The levels that correspond to 0, 1, 2, .. wrong items in the largest class.
    let level = |noisy: usize| Noise { level: noisy as f64 / shots as f64, ..noise };
    let valid = (0..shots).map(level).filter(|&noise| is_possible(noise, spec));
    // In percent, with at most two decimals.
    let valid: Vec<String> = valid.map(|noise| ((noise.level * 1e4).round() / 1e2).to_string()).collect();
    Error::ImpossibleNoise {
        kind: noise.kind.name(),
        percent: noise.percent(),
        ways: spec.ways,
        shots: spec.shots.to_string(),
        valid: format!("{} %", valid.join(", ")),
    }
}

/// Checks that the outlier pool exists, has the right dimension and has enough rows for every episode.
fn check_outliers(
    noise: Noise,
    spec: &EpisodeSpec,
    embeddings: &Embeddings,
    outliers: Option<&Embeddings>,
) -> Result<()> {
    if noise.level == 0.0 {
        return Ok(());
    }
    let pool = outliers.unwrap_or(embeddings);
    check_outlier_dimension(pool, embeddings)?;
    let need = spec.ways * noise.noisy_items(spec.shots.max);
    let mut sizes: Vec<usize> = (0..pool.classes().len()).map(|class| pool.rows_of(class).len()).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    // If the pool is the data itself, the episode may take the largest classes away from it.
    let in_episode = if std::ptr::eq(pool, embeddings) { spec.ways } else { 0 };
    let have = sizes[in_episode.min(sizes.len())..].iter().sum();
    if have < need {
        return Err(Error::OutlierPoolTooSmall { have, need });
    }
    Ok(())
}

fn check_outlier_dimension(pool: &Embeddings, embeddings: &Embeddings) -> Result<()> {
    match pool.dim() == embeddings.dim() {
        true => Ok(()),
        false => Err(Error::OutlierDimension { pool: pool.dim(), data: embeddings.dim() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::Shots;
    use crate::noise::NoisyLabels;
    use std::collections::HashSet;

    /// One-dimensional rows in the order of their classes; row i has the value i.
    fn embeddings(classes: usize, items: usize) -> Embeddings {
        let labels = (0..classes * items).map(|i| format!("class {:02}", i / items)).collect();
        Embeddings::from_rows((0..classes * items).map(|i| i as f32).collect(), 1, labels).unwrap()
    }

    fn spec(ways: usize, shots: Shots, queries: usize) -> EpisodeSpec {
        EpisodeSpec { ways, shots, queries, seed: 11 }
    }

    fn noises(list: &[(NoiseKind, f64)]) -> Vec<Noise> {
        list.iter().map(|&(kind, level)| Noise::new(kind, level).unwrap()).collect()
    }

    const ALL: [(NoiseKind, f64); 10] = [
        (NoiseKind::Symmetric, 0.0),
        (NoiseKind::Symmetric, 0.2),
        (NoiseKind::Symmetric, 0.4),
        (NoiseKind::Symmetric, 0.6),
        (NoiseKind::Paired, 0.4),
        (NoiseKind::Outlier, 0.2),
        (NoiseKind::Outlier, 0.4),
        (NoiseKind::Outlier, 0.6),
        (NoiseKind::Similar, 0.2),
        (NoiseKind::Similar, 0.6),
    ];

    #[test]
    fn every_setting_has_exactly_its_share_of_wrong_labels() {
        let (data, pool) = (embeddings(12, 30), embeddings(3, 10));
        let sampler = Sampler::new(&data, Some(&pool), spec(5, Shots::exactly(5), 15), noises(&ALL)).unwrap();
        for index in 0..300 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            for (support, noise) in drawn.supports.iter().zip(sampler.noises()) {
                for class in 0..5 {
                    let wrong = support.iter().filter(|i| i.given == class && i.is_wrong()).count();
                    assert_eq!(wrong, noise.noisy_items(5), "{noise}");
                }
                let rows: HashSet<_> = support.iter().map(|i| (i.row, i.truth.is_some())).collect();
                assert_eq!(rows.len(), 25, "no item is used twice under {noise}");
            }
        }
    }

    #[test]
    fn outliers_from_the_data_itself_are_of_other_classes() {
        let data = embeddings(7, 30);
        let noise = noises(&[(NoiseKind::Outlier, 0.4)]);
        let sampler = Sampler::new(&data, Some(&data), spec(5, Shots::exactly(5), 5), noise.clone()).unwrap();
        let mut seen = HashSet::new();
        for index in 0..200 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            let outliers: Vec<u32> =
                drawn.supports[0].iter().filter(|item| item.truth.is_none()).map(|item| item.row).collect();
            assert_eq!(outliers.len(), 10);
            let is_inside = |row: &u32| drawn.episode.classes.iter().any(|draw| draw.class == row / 30);
            assert!(!outliers.iter().any(is_inside));
            seen.extend(outliers);
        }
        assert!(seen.len() > 200, "all rows are drawn from: {}", seen.len());
        let error = Sampler::new(&data, Some(&data), spec(7, Shots::exactly(5), 5), noise).err().unwrap();
        assert!(matches!(error, Error::OutlierPoolTooSmall { have: 0, need: 14 }), "{error}");
    }

    #[test]
    fn no_wrong_class_ties_with_the_right_one() {
        let data = embeddings(12, 40);
        for (ways, shots) in [(5, 5), (5, 10), (3, 7), (10, 4)] {
            let settings: Vec<_> = (0..shots)
                .filter(|&n| NoiseKind::Symmetric.is_possible(ways, shots, n))
                .flat_map(|n| {
                    [NoiseKind::Symmetric, NoiseKind::Similar].map(|kind| (kind, n as f64 / shots as f64))
                })
                .collect();
            let sampler =
                Sampler::new(&data, None, spec(ways, Shots::exactly(shots), 5), noises(&settings)).unwrap();
            for index in 0..200 {
                for support in sampler.draw(index, &mut IndexSampler::default()).unwrap().supports {
                    for given in 0..ways as u32 {
                        let count = |truth| {
                            support.iter().filter(|i| i.given == given && i.truth == Some(truth)).count()
                        };
                        let others = (0..ways as u32).filter(|&truth| truth != given).map(count);
                        assert!(others.max().unwrap() < count(given));
                    }
                }
            }
        }
    }

    #[test]
    fn no_episode_contains_two_copies_of_one_image() {
        // Row r is copy r / 120 of image r % 120 (0 is the original); there are 20 images per class.
        let names = (0..3).flat_map(|copy| {
            (0..6 * 20).map(move |i| if copy == 0 { format!("{i}") } else { format!("{i}#{copy}") })
        });
        let labels = (0..3 * 6 * 20).map(|i| format!("class {}", i % 120 / 20)).collect();
        let data = Embeddings::from_rows((0..360).map(|i| i as f32).collect(), 1, labels).unwrap();
        let data = data.with_items(crate::embeddings::Items::from_names(names)).unwrap();
        let shape = spec(5, Shots::exactly(5), 10);
        let sampler = Sampler::new(&data, None, shape, noises(&[(NoiseKind::Symmetric, 0.4)])).unwrap();
        let mut used = HashSet::new();
        for index in 0..50 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            let queries = drawn.episode.classes.iter().flat_map(|class| class.queries.iter().copied());
            let rows: Vec<u32> = drawn.supports[0].iter().map(|item| item.row).chain(queries).collect();
            let images: HashSet<u32> = rows.iter().map(|row| row % 120).collect();
            assert_eq!(images.len(), rows.len());
            used.extend(rows);
        }
        assert!(used.len() > 300, "all copies are used: {}", used.len());
        let error = Sampler::new(&data, None, spec(5, Shots::exactly(6), 10), vec![]).err().unwrap();
        assert!(matches!(error, Error::TooFewItems { have: 20, .. }), "copies do not count as items");
    }

    #[test]
    fn clean_items_are_the_same_under_every_setting_and_noisy_items_nest() {
        let (data, pool) = (embeddings(8, 40), embeddings(3, 10));
        let sampler = Sampler::new(
            &data,
            Some(&pool),
            spec(5, Shots { min: 4, max: 9 }, 10),
            noises(&[
                (NoiseKind::Symmetric, 0.0),
                (NoiseKind::Symmetric, 0.2),
                (NoiseKind::Symmetric, 0.4),
                (NoiseKind::Outlier, 0.4),
            ]),
        );
        let sampler = sampler.unwrap();
        for index in 0..100 {
            let supports = sampler.draw(index, &mut IndexSampler::default()).unwrap().supports;
            for item in 0..supports[0].len() {
                let wrong: Vec<bool> = supports.iter().map(|s| s[item].is_wrong()).collect();
                assert!(!wrong[0] && wrong[1] <= wrong[2] && wrong[2] == wrong[3], "{wrong:?}");
                for support in &supports {
                    assert!(support[item].is_wrong() || support[item] == supports[0][item]);
                }
            }
        }
    }

    #[test]
    fn an_episode_does_not_depend_on_other_noise_settings_or_other_episodes() {
        let (data, pool) = (embeddings(8, 30), embeddings(3, 10));
        let shape = spec(5, Shots::exactly(5), 15);
        let all = Sampler::new(&data, Some(&pool), shape, noises(&ALL)).unwrap();
        let alone = Sampler::new(&data, None, shape, noises(&ALL[3..4])).unwrap();
        let mut index_sampler = IndexSampler::default();
        (0..50).for_each(|index| drop(all.draw(index, &mut index_sampler).unwrap()));
        let (with_all, by_itself) = (
            all.draw(77, &mut index_sampler).unwrap(),
            alone.draw(77, &mut IndexSampler::default()).unwrap(),
        );
        assert_eq!(with_all.episode, by_itself.episode);
        assert_eq!(with_all.supports[3], by_itself.supports[0]);
    }

    #[test]
    fn paired_noise_takes_all_replacements_from_one_other_class() {
        let data = embeddings(8, 60);
        let shape = spec(5, Shots { min: 5, max: 12 }, 5);
        let sampler = Sampler::new(&data, None, shape, noises(&[(NoiseKind::Paired, 0.4)])).unwrap();
        for index in 0..200 {
            let support = &sampler.draw(index, &mut IndexSampler::default()).unwrap().supports[0];
            let mut sources = HashSet::new();
            for given in 0..5 {
                let wrong = support.iter().filter(|i| i.given == given && i.is_wrong());
                let from: HashSet<_> = wrong.map(|i| i.truth).collect();
                assert_eq!(from.len(), 1);
                sources.extend(from);
            }
            assert_eq!(sources.len(), 5, "every class is the source of exactly one other");
        }
    }

    /// A noise type with fixed results: the given labels, and outliers as (item, row).
    struct Fixed {
        given: Vec<u32>,
        outliers: Vec<(u32, u32)>,
    }

    impl LabelNoise for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn relabel(&self, support: &CleanSupport<'_>, _rng: &mut Rng) -> Result<NoisyLabels> {
            assert_eq!(support.rows.len(), support.labels.len());
            Ok(NoisyLabels { given: self.given.clone(), outliers: self.outliers.clone() })
        }
    }

    fn relabelled(data: &Embeddings, pool: Option<&Embeddings>, noise: Fixed) -> Result<Vec<Item>> {
        let sampler = Sampler::new(data, pool, spec(3, Shots::exactly(2), 1), vec![]).unwrap();
        let sampler = sampler.with_noise(Box::new(noise)).unwrap();
        assert_eq!(sampler.noises()[0].kind.name(), "fixed");
        Ok(sampler.draw(4, &mut IndexSampler::default())?.supports.remove(0))
    }

    #[test]
    fn custom_noise_moves_items_between_labels_and_replaces_them_by_outliers() {
        let (data, pool) = (embeddings(5, 10), embeddings(2, 10));
        let noise = Fixed { given: vec![0, 1, 1, 1, 2, 0], outliers: vec![(3, 7)] };
        let items = relabelled(&data, Some(&pool), noise).unwrap();
        assert_eq!(items.iter().map(|item| item.given).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 2]);
        let wrong = items.iter().filter(|item| item.is_wrong());
        assert_eq!(wrong.count(), 3, "two labels are changed, and one item is an outlier");
        let outliers: Vec<&Item> = items.iter().filter(|item| item.truth.is_none()).collect();
        assert_eq!(outliers, [&Item { row: 7, given: 1, truth: None }]);
    }

    #[test]
    fn custom_noise_with_labels_that_are_not_allowed_is_refused_with_the_episode() {
        let data = embeddings(5, 10);
        let refused = |given: &[u32], outliers: &[(u32, u32)]| {
            let noise = Fixed { given: given.to_vec(), outliers: outliers.to_vec() };
            relabelled(&data, None, noise).err().unwrap().to_string()
        };
        let right = [0, 0, 1, 1, 2, 2];
        assert!(refused(&[0, 0, 1], &[]).starts_with("noise 'fixed', episode 4: 3 given labels for 6 items"));
        assert!(
            refused(&[0, 0, 1, 1, 2, 3], &[]).contains("the given label 3 is not a class of the episode")
        );
        assert!(refused(&[0, 0, 1, 1, 1, 1], &[]).contains("has no item left; every class must keep one"));
        assert!(refused(&right, &[(6, 0)]).contains("there are 6 items"));
        assert!(refused(&right, &[(0, 50)]).contains("row 50 is not an outlier: there are 50 rows"));
        // One row of each of the five classes, three of which are in the episode.
        let all_rows: Vec<(u32, u32)> = (0..6).zip((0..50).step_by(10)).collect();
        assert!(refused(&right, &all_rows[..5]).contains("it is of a class of the episode"));
    }

    #[test]
    fn the_wrong_items_of_similar_noise_are_the_nearest_ones() {
        // The rows of class c are numbers from 10 c on, so the nearest items are of the classes next to it.
        let value = |row: usize| (row / 30 * 10) as f32 + (row % 30) as f32 / 10.0;
        let labels = (0..240).map(|row| format!("class {}", row / 30)).collect();
        let data = Embeddings::from_rows((0..240).map(value).collect(), 1, labels).unwrap();
        let shape = spec(5, Shots::exactly(5), 1);
        let sampler = Sampler::new(&data, None, shape, noises(&[(NoiseKind::Similar, 0.2)])).unwrap();
        for index in 0..100 {
            let drawn = sampler.draw(index, &mut IndexSampler::default()).unwrap();
            let mut order: Vec<u32> = drawn.episode.classes.iter().map(|draw| draw.class).collect();
            order.sort_unstable();
            let rank = |class: u32| {
                let class = drawn.episode.classes[class as usize].class;
                order.iter().position(|&other| other == class).unwrap()
            };
            for item in drawn.supports[0].iter().filter(|item| item.is_wrong()) {
                let distance = rank(item.given).abs_diff(rank(item.truth.unwrap()));
                assert_eq!(distance, 1, "the wrong class is the next one");
            }
        }
    }

    #[test]
    fn default_levels_that_are_impossible_are_left_out() {
        let percents = |shots: Shots| {
            let noise = DefaultNoise::of(&spec(5, shots, 15));
            noise.settings.iter().map(|noise| noise.percent()).collect::<Vec<_>>()
        };
        assert_eq!(percents(Shots::exactly(5)), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(percents(Shots::exactly(1)), [0.0]);
        assert_eq!(
            percents(Shots::exactly(2)),
            [0.0],
            "20 % of two items round to 0 items, and one wrong of two is a tie"
        );
        assert_eq!(percents(Shots::exactly(3)), [0.0, 20.0, 40.0]);
        assert_eq!(percents(Shots { min: 2, max: usize::MAX }).len(), 4, "the sampler refuses this shape");
        let note = DefaultNoise::of(&spec(5, Shots::exactly(5), 15)).note(&spec(5, Shots::exactly(5), 15));
        assert_eq!(note, None);
    }

    #[test]
    fn the_error_for_too_few_items_says_how_many_queries_would_fit() {
        let error =
            Sampler::new(&embeddings(6, 20), None, spec(5, Shots::exactly(5), 15), vec![]).err().unwrap();
        assert_eq!(error.hint().unwrap(), "the largest number of queries that fits is 10");
        let error =
            Sampler::new(&embeddings(6, 20), None, spec(5, Shots::exactly(10), 1), vec![]).err().unwrap();
        assert_eq!(error.hint().unwrap(), "use fewer shots");
        let error =
            Sampler::new(&embeddings(6, 2), None, spec(5, Shots::exactly(1), 1), vec![]).err().unwrap();
        assert!(error.to_string().contains(" 1 shot, 1 for the noise pool and 1 query need 3"), "{error}");
        let error =
            Sampler::new(&embeddings(6, 20), None, spec(5, Shots::exactly(11), 0), vec![]).err().unwrap();
        assert!(error.hint().unwrap().contains("the largest number of shots for this class is 10"));
    }

    #[test]
    fn impossible_noise_is_refused_with_the_possible_levels() {
        let data = embeddings(6, 40);
        let refuse = |kind, level, pool: Option<&Embeddings>| {
            let settings = noises(&[(kind, level)]);
            Sampler::new(&data, pool, spec(5, Shots::exactly(5), 15), settings).err().unwrap()
        };
        let message = refuse(NoiseKind::Symmetric, 0.8, None).to_string();
        assert!(message.ends_with("possible: 0, 20, 40, 60 %"), "{message}");
        let message = refuse(NoiseKind::Paired, 0.6, None).to_string();
        assert!(message.ends_with("possible: 0, 20, 40 %"), "{message}");
        let unequal = spec(5, Shots { min: 3, max: 12 }, 5);
        let message = Sampler::new(&data, None, unequal, noises(&[(NoiseKind::Paired, 0.4)]))
            .err()
            .unwrap()
            .to_string();
        assert!(
            message.ends_with("possible: 0, 8.33, 16.67, 25 %"),
            "four of twelve cannot come from a class of three: {message}"
        );
        let few =
            Sampler::new(&data, None, spec(6, Shots::exactly(5), 15), noises(&[(NoiseKind::Outlier, 0.4)]));
        assert!(
            matches!(few.err().unwrap(), Error::OutlierPoolTooSmall { have: 0, need: 12 }),
            "all classes are in the episode"
        );
        assert!(matches!(
            refuse(NoiseKind::Outlier, 0.4, Some(&embeddings(1, 9))),
            Error::OutlierPoolTooSmall { have: 9, need: 10 }
        ));
        let wide = Embeddings::from_rows(vec![0.5; 60], 2, vec!["a".into(); 30]).unwrap();
        assert!(matches!(refuse(NoiseKind::Outlier, 0.4, Some(&wide)), Error::OutlierDimension { .. }));
        let few = Sampler::new(&data, None, spec(7, Shots::exactly(2), 1), vec![]).err().unwrap();
        assert!(matches!(few, Error::TooFewClasses { ways: 7, classes: 6 }));
    }
}
