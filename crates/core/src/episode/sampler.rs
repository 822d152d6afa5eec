//! Draws episodes from embeddings: which classes, which items, and how noise moves them.

use std::sync::Arc;

use super::{AugmentedCopies, ClassDraw, DrawnEpisode, Episode, EpisodeSpec, Episodes, Item, corrupt};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::noise::{Noise, NoiseKind};
use crate::rng::{IndexSampler, Purpose, Rng};

/// Draws any episode of an experiment, in any order.
pub struct Sampler<'a> {
    embeddings: &'a Embeddings,
    images: Option<Arc<AugmentedCopies>>,
    spec: EpisodeSpec,
    noises: Vec<Noise>,
    outliers: Pool,
}

/// Where outliers come from.
enum Pool {
    /// So many rows of other classes; 0 without any.
    Apart(usize),
    /// The data itself: whatever is of no class of the episode.
    OtherClasses,
}

impl<'a> Sampler<'a> {
    /// Checks once that every episode under every setting can be drawn. If the outliers are the embeddings themselves,
    /// those of an episode are of classes it has not.
    pub fn new(
        embeddings: &'a Embeddings,
        outliers: Option<&Embeddings>,
        spec: EpisodeSpec,
        noises: Vec<Noise>,
    ) -> Result<Self> {
        let images = AugmentedCopies::of(embeddings).map(Arc::new);
        Self::with_images(embeddings, images, outliers, spec, noises)
    }

    /// The same, where the images behind the rows are known already.
    pub(crate) fn with_images(
        embeddings: &'a Embeddings,
        images: Option<Arc<AugmentedCopies>>,
        outliers: Option<&Embeddings>,
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
            Some(pool) if std::ptr::eq(pool, embeddings) => Pool::OtherClasses,
            pool => Pool::Apart(pool.map_or(0, Embeddings::len)),
        };
        Ok(Sampler { embeddings, images, spec, noises, outliers })
    }

    /// Draws an episode without noise.
    pub fn episode(&self, index: u64, urn: &mut IndexSampler) -> Episode {
        let EpisodeSpec { ways, shots, queries, seed } = self.spec;
        let mut items = Rng::new(seed, Purpose::Items, index);
        let mut sizes = Rng::new(seed, Purpose::Shots, index);
        let mut places = Rng::new(seed, Purpose::Places, index);
        let mut copies = Rng::new(seed, Purpose::Copies, index);
        let classes = urn.draw(&mut items, self.embeddings.classes().len(), ways);
        let draw_class = |class: u32| {
            let count = shots.min + sizes.below(shots.max - shots.min + 1);
            let images = count_images(self.embeddings, self.images.as_deref(), class as usize);
            let drawn = urn.draw(&mut items, images, 2 * shots.max + queries);
            let rows = self.rows(class as usize, drawn, &mut copies);
            let take = |range: std::ops::Range<usize>| rows[range].to_vec();
            let mut noise_order: Vec<u32> = (0..count as u32).collect();
            places.shuffle(&mut noise_order);
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

    /// The error for noise that no episode of this shape can have.
    pub(crate) fn impossible(&self, noise: Noise) -> Error {
        impossible(noise, &self.spec)
    }

    /// A row for each of some images of a class.
    fn rows(&self, class: usize, mut images: Vec<u32>, copies: &mut Rng) -> Vec<u32> {
        let all = self.embeddings.rows_of(class);
        images.iter_mut().for_each(|image| {
            *image = match &self.images {
                None => all[*image as usize],
                Some(images) => {
                    let rows = images.rows(class, *image as usize);
                    rows[copies.below(rows.len())]
                }
            }
        });
        images
    }

    /// Puts noise into the support set of an episode.
    pub fn corrupt(&self, episode: &Episode, noise: Noise, urn: &mut IndexSampler) -> Result<Vec<Item>> {
        let replaced = match noise.kind {
            _ if noise.level == 0.0 => corrupt::none(episode),
            NoiseKind::Symmetric => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Symmetric, episode.index);
                corrupt::symmetric(episode, noise, &mut rng)
            }
            NoiseKind::Paired => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Paired, episode.index);
                corrupt::paired(episode, noise, &mut rng)
            }
            NoiseKind::Outlier => {
                let mut rng = Rng::new(self.spec.seed, Purpose::Outlier, episode.index);
                Some(match self.outliers {
                    Pool::Apart(rows) => corrupt::outlier(episode, noise, &mut rng, rows, urn),
                    Pool::OtherClasses => self.outliers_among_other_classes(episode, noise, &mut rng, urn),
                })
            }
        };
        let replaced = replaced.ok_or_else(|| impossible(noise, &self.spec))?;
        Ok(corrupt::support_set(episode, &replaced))
    }
}

impl Sampler<'_> {
    fn outliers_among_other_classes(
        &self,
        episode: &Episode,
        noise: Noise,
        rng: &mut Rng,
        urn: &mut IndexSampler,
    ) -> corrupt::Replaced {
        let has = |class: usize| episode.classes.iter().any(|draw| draw.class as usize == class);
        let others = || (0..self.embeddings.classes().len()).filter(|&class| !has(class));
        let rows = others().map(|class| self.embeddings.rows_of(class).len()).sum();
        let mut replaced = corrupt::outlier(episode, noise, rng, rows, urn);
        for (place, _) in replaced.iter_mut().flatten() {
            let mut left = *place as usize;
            for class in others() {
                let rows = self.embeddings.rows_of(class);
                if let Some(&row) = rows.get(left) {
                    *place = row;
                    break;
                }
                left -= rows.len();
            }
        }
        replaced
    }
}

impl Episodes for Sampler<'_> {
    fn spec(&self) -> &EpisodeSpec {
        &self.spec
    }

    fn noises(&self) -> &[Noise] {
        &self.noises
    }

    fn draw(&self, index: u64, urn: &mut IndexSampler) -> Result<DrawnEpisode> {
        let episode = self.episode(index, urn);
        let supports =
            self.noises.iter().map(|&noise| self.corrupt(&episode, noise, urn)).collect::<Result<_>>()?;
        Ok(DrawnEpisode { episode, supports })
    }
}

fn count_images(embeddings: &Embeddings, images: Option<&AugmentedCopies>, class: usize) -> usize {
    images.map_or_else(|| embeddings.rows_of(class).len(), |images| images.count(class))
}

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

/// Whether every episode has a valid draw, however the numbers of shots fall: each number must be possible
/// among its like, and one class of the largest among others of the smallest.
fn is_possible(noise: Noise, spec: &EpisodeSpec) -> bool {
    let EpisodeSpec { ways, shots, .. } = *spec;
    let mut sizes = shots.min..=shots.max;
    let among_its_like = sizes.all(|shots| noise.kind.is_possible(ways, shots, noise.noisy_items(shots)));
    let noisy = noise.noisy_items(shots.max);
    let from_the_smallest = match noise.kind {
        NoiseKind::Symmetric => (ways - 1) * shots.min.min((shots.max - noisy).saturating_sub(1)) >= noisy,
        NoiseKind::Paired => shots.min >= noisy,
        NoiseKind::Outlier => true,
    };
    among_its_like && from_the_smallest
}

fn impossible(noise: Noise, spec: &EpisodeSpec) -> Error {
    let shots = spec.shots.max;
    let level = |noisy: usize| Noise { level: noisy as f64 / shots as f64, ..noise };
    let valid = (0..shots).map(level).filter(|&noise| is_possible(noise, spec));
    let valid: Vec<String> = valid.map(|noise| ((noise.level * 1e4).round() / 1e2).to_string()).collect();
    Error::ImpossibleNoise {
        kind: noise.kind,
        percent: noise.percent(),
        ways: spec.ways,
        shots: spec.shots.to_string(),
        valid: format!("{} %", valid.join(", ")),
    }
}

fn check_outliers(
    noise: Noise,
    spec: &EpisodeSpec,
    embeddings: &Embeddings,
    outliers: Option<&Embeddings>,
) -> Result<()> {
    if noise.level == 0.0 {
        return Ok(());
    }
    let pool = outliers.ok_or(Error::NoOutlierPool)?;
    if pool.dim() != embeddings.dim() {
        return Err(Error::OutlierDimension { pool: pool.dim(), data: embeddings.dim() });
    }
    let need = spec.ways * noise.noisy_items(spec.shots.max);
    let mut sizes: Vec<usize> = (0..pool.classes().len()).map(|class| pool.rows_of(class).len()).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let not_free = if std::ptr::eq(pool, embeddings) { spec.ways } else { 0 };
    let have = sizes[not_free.min(sizes.len())..].iter().sum();
    if have < need {
        return Err(Error::OutlierPoolTooSmall { have, need });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::episode::Shots;
    use std::collections::HashSet;

    fn bank(classes: usize, items: usize) -> Embeddings {
        let labels = (0..classes * items).map(|i| format!("class {:02}", i / items)).collect();
        Embeddings::from_rows((0..classes * items).map(|i| i as f32).collect(), 1, labels).unwrap()
    }

    fn spec(ways: usize, shots: Shots, queries: usize) -> EpisodeSpec {
        EpisodeSpec { ways, shots, queries, seed: 11 }
    }

    fn noises(list: &[(NoiseKind, f64)]) -> Vec<Noise> {
        list.iter().map(|&(kind, level)| Noise::new(kind, level).unwrap()).collect()
    }

    const ALL: [(NoiseKind, f64); 8] = [
        (NoiseKind::Symmetric, 0.0),
        (NoiseKind::Symmetric, 0.2),
        (NoiseKind::Symmetric, 0.4),
        (NoiseKind::Symmetric, 0.6),
        (NoiseKind::Paired, 0.4),
        (NoiseKind::Outlier, 0.2),
        (NoiseKind::Outlier, 0.4),
        (NoiseKind::Outlier, 0.6),
    ];

    #[test]
    fn every_setting_has_exactly_its_share_of_wrong_labels() {
        let (data, pool) = (bank(12, 30), bank(3, 10));
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
        let data = bank(7, 30);
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
        let data = bank(12, 40);
        for (ways, shots) in [(5, 5), (5, 10), (3, 7), (10, 4)] {
            let settings: Vec<_> = (0..shots)
                .filter(|&n| NoiseKind::Symmetric.is_possible(ways, shots, n))
                .map(|n| (NoiseKind::Symmetric, n as f64 / shots as f64))
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
    fn no_episode_holds_two_copies_of_one_image() {
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
        assert!(matches!(error, Error::TooFewItems { have: 20, .. }), "copies are no further items");
    }

    #[test]
    fn what_stays_clean_is_the_same_under_every_setting_and_noisy_items_nest() {
        let (data, pool) = (bank(8, 40), bank(3, 10));
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
            for place in 0..supports[0].len() {
                let wrong: Vec<bool> = supports.iter().map(|s| s[place].is_wrong()).collect();
                assert!(!wrong[0] && wrong[1] <= wrong[2] && wrong[2] == wrong[3], "{wrong:?}");
                for support in &supports {
                    assert!(support[place].is_wrong() || support[place] == supports[0][place]);
                }
            }
        }
    }

    #[test]
    fn an_episode_does_not_depend_on_the_noise_asked_for_or_on_other_episodes() {
        let (data, pool) = (bank(8, 30), bank(3, 10));
        let shape = spec(5, Shots::exactly(5), 15);
        let all = Sampler::new(&data, Some(&pool), shape, noises(&ALL)).unwrap();
        let alone = Sampler::new(&data, None, shape, noises(&ALL[3..4])).unwrap();
        let mut urn = IndexSampler::default();
        (0..50).for_each(|index| drop(all.draw(index, &mut urn).unwrap()));
        let (one, other) =
            (all.draw(77, &mut urn).unwrap(), alone.draw(77, &mut IndexSampler::default()).unwrap());
        assert_eq!(one.episode, other.episode);
        assert_eq!(one.supports[3], other.supports[0]);
    }

    #[test]
    fn paired_noise_takes_all_replacements_from_one_other_class() {
        let data = bank(8, 60);
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
            assert_eq!(sources.len(), 5, "every class lends to exactly one other");
        }
    }

    #[test]
    fn too_few_items_say_how_many_queries_would_fit() {
        let error = Sampler::new(&bank(6, 20), None, spec(5, Shots::exactly(5), 15), vec![]).err().unwrap();
        assert_eq!(error.hint().unwrap(), "the largest number of queries that fits is 10");
        let error = Sampler::new(&bank(6, 20), None, spec(5, Shots::exactly(11), 0), vec![]).err().unwrap();
        assert!(error.hint().unwrap().contains("most shots this class allows is 10"));
    }

    #[test]
    fn impossible_settings_are_refused_with_what_would_be_possible() {
        let data = bank(6, 40);
        let refuse = |kind, level, pool: Option<&Embeddings>| {
            let settings = noises(&[(kind, level)]);
            Sampler::new(&data, pool, spec(5, Shots::exactly(5), 15), settings).err().unwrap()
        };
        let message = refuse(NoiseKind::Symmetric, 0.8, None).to_string();
        assert!(message.ends_with("possible: 0, 20, 40, 60 %"), "{message}");
        let message = refuse(NoiseKind::Paired, 0.6, None).to_string();
        assert!(message.ends_with("possible: 0, 20, 40 %"), "{message}");
        let ragged = spec(5, Shots { min: 3, max: 12 }, 5);
        let message =
            Sampler::new(&data, None, ragged, noises(&[(NoiseKind::Paired, 0.4)])).err().unwrap().to_string();
        assert!(
            message.ends_with("possible: 0, 8.33, 16.67, 25 %"),
            "four of twelve cannot come from a class of three: {message}"
        );
        assert!(matches!(refuse(NoiseKind::Outlier, 0.4, None), Error::NoOutlierPool));
        assert!(matches!(
            refuse(NoiseKind::Outlier, 0.4, Some(&bank(1, 9))),
            Error::OutlierPoolTooSmall { have: 9, need: 10 }
        ));
        let wide = Embeddings::from_rows(vec![0.5; 60], 2, vec!["a".into(); 30]).unwrap();
        assert!(matches!(refuse(NoiseKind::Outlier, 0.4, Some(&wide)), Error::OutlierDimension { .. }));
        let few = Sampler::new(&data, None, spec(7, Shots::exactly(2), 1), vec![]).err().unwrap();
        assert!(matches!(few, Error::TooFewClasses { ways: 7, classes: 6 }));
    }
}
