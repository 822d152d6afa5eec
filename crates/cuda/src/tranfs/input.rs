//! The input of a TraNFS training step: [`StepInput`], which the caller fills, and its encoding for the kernels.
//!
//! `write_slot` encodes a [`StepInput`] as 32-bit words in a slot, the memory for the input of one step. `InputLayout`
//! says where each list starts in a slot. The records `StepRecord`, `EpisodeRecord` and `ClassRecord` have the same
//! fields as `TranfsStep`, `TranfsEpisode` and `TranfsClass` in `kernels/tranfs.cu`.

use bytemuck::{Pod, Zeroable};

/// The input of one training step: its episodes and learning rate. The loss is the mean over all episodes.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The learning rate of this step.
    pub rate: f64,
    /// The episodes, grouped by dropout seed.
    pub parts: Vec<PartInput>,
    /// Feature rows that are not in the data set, such as weighted means of two rows, `[rows, dim]`. With N rows in the
    /// data set, the extra rows have the numbers N, N + 1, and so on.
    pub extra_rows: Vec<f32>,
}

/// Episodes that share a dropout seed. The CPU computes each part separately, and the GPU uses the same dropout masks.
#[derive(Debug, Clone)]
pub struct PartInput {
    /// The seed of the part's dropout masks.
    pub dropout_seed: u64,
    /// The episodes of the part. Their order matters: the dropout mask of an episode depends on those before it.
    pub episodes: Vec<EpisodeInput>,
}

/// One episode: its support items and queries, each list in any order.
#[derive(Debug, Clone)]
pub struct EpisodeInput {
    /// The number of classes. Labels are from 0 to `classes - 1`.
    pub classes: usize,
    /// The support items of all classes.
    pub support: Vec<SupportItem>,
    /// The queries of all classes.
    pub queries: Vec<Query>,
}

/// One support item, with its given label and whether that label is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportItem {
    /// The number of the item's feature row, in the data set or in [`StepInput::extra_rows`].
    pub row: u32,
    /// The given (possibly wrong) label, from 0 to `classes - 1`.
    pub given: u32,
    /// Whether the given label is wrong.
    pub mislabelled: bool,
}

/// One query, with its true class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// The number of the query's feature row, in the data set or in [`StepInput::extra_rows`].
    pub row: u32,
    /// The true class, from 0 to `classes - 1`.
    pub class: u32,
}

/// The maximum sizes of a step, for which memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Episodes per step.
    pub episodes: usize,
    /// Support items per episode.
    pub support: usize,
    /// Queries per episode.
    pub queries: usize,
}

/// The highest bit of a label. In the list `labels` it marks a mislabelled item, in the list `tokens` a class token.
const LABEL_FLAG: u32 = 1 << 31;

/// The layout of a slot: where each list starts, in words of 32 bits from the start of the slot.
///
/// A slot begins with the [`StepRecord`]. Every list is long enough for the largest step and holds the entries of
/// all episodes of the step without gaps. The fields are in the order of `struct Tranfs` in `kernels/tranfs.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct InputLayout {
    /// The length of a slot in words.
    pub slot_len: i32,
    /// One [`EpisodeRecord`] per episode.
    episodes: i32,
    /// One [`ClassRecord`] per class.
    classes: i32,
    /// The number of the feature row of each support item.
    rows: i32,
    /// The given label of each support item, with [`LABEL_FLAG`] if it is wrong.
    labels: i32,
    /// The class of each token, with [`LABEL_FLAG`] for a class token. The tokens of an episode are its class tokens,
    /// then its support items sorted by given label.
    tokens: i32,
    /// The number of the feature row of each query.
    query_rows: i32,
    /// The true class of each query.
    query_classes: i32,
}

/// The first entry of a slot: what concerns the whole step. 16 words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct StepRecord {
    /// The factors of the AdamW update: `keep`, `rate` and `second_scale` of `TranfsStep`.
    factors: [f32; 3],
    /// 1 / episodes, the weight of an episode in the mean loss.
    scale: f32,
    // The lengths of the lists.
    episodes: i32,
    tokens: i32,
    items: i32,
    classes: i32,
    queries: i32,
    /// The index of the step's first extra row in the buffer with the extra rows of several steps.
    extra_start: i32,
    padding: [i32; 6],
}

/// One episode: where its entries start in the lists of the slot, and how many there are. 16 words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct EpisodeRecord {
    first_token: i32,
    tokens: i32,
    first_item: i32,
    items: i32,
    first_class: i32,
    classes: i32,
    first_query: i32,
    queries: i32,
    /// The dropout seed: its low word, then its high word.
    seed: [u32; 2],
    /// The index of the episode's first token among the tokens of its part. Dropout masks are indexed within a part.
    dropout_token: u32,
    /// The index of the episode's first attention weight among those of its part, see [`map_len`].
    dropout_map: u32,
    /// The index of the episode's first attention weight among those of the step, for one layer.
    map_start: i32,
    padding: [i32; 3],
}

/// One class of an episode. 4 words.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ClassRecord {
    /// The index of its class token in the list `tokens`.
    token: i32,
    /// The index of its first support item, by given label, in the lists `rows` and `labels`.
    first_item: i32,
    /// The number of support items with this given label.
    items: i32,
    padding: i32,
}

/// The number of attention weights of one head in an episode, `[tokens, tokens]` with rows padded to a multiple of 16.
/// Both the memory and the indices of dropout masks include the padding.
pub(super) fn map_len(tokens: usize) -> usize {
    tokens * tokens.next_multiple_of(16)
}

impl InputLayout {
    /// The layout for steps of at most these sizes; `classes` is the maximum number of classes per episode.
    pub fn new(limits: Limits, classes: usize) -> Self {
        let Limits { episodes, support, queries } = limits;
        let mut end = 0;
        // Returns the start of a list of this length. Lists start at multiples of 16 bytes.
        let mut reserve = |words: usize| {
            let start = end;
            end += words.next_multiple_of(4);
            i32::try_from(start).expect("the input of a step is below 8 GiB")
        };
        reserve(size_of::<StepRecord>() / 4);
        let mut layout = InputLayout {
            slot_len: 0,
            episodes: reserve(episodes * size_of::<EpisodeRecord>() / 4),
            classes: reserve(episodes * classes * size_of::<ClassRecord>() / 4),
            rows: reserve(episodes * support),
            labels: reserve(episodes * support),
            tokens: reserve(episodes * (support + classes)),
            query_rows: reserve(episodes * queries),
            query_classes: reserve(episodes * queries),
        };
        layout.slot_len = reserve(0);
        layout
    }
}

/// The sizes that [`write_slot`] checks a step's input against, and the number of attention heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputLimits {
    /// The maximum sizes of a step.
    pub limits: Limits,
    /// The maximum number of classes per episode.
    pub classes: usize,
    /// The number of feature rows: those of the data set and the extra rows of the step.
    pub rows: usize,
    /// The number of attention heads; the indices of attention weights depend on it.
    pub heads: usize,
}

/// Encodes a step's input into its slot, `[slot_len]`. `factors` are those of the AdamW update, see [`StepRecord`].
/// `extra_start` is the index of the step's first extra row in the buffer with the extra rows of several steps.
///
/// # Panics
/// If a size exceeds its limit, a label is not below the number of classes, or a row number not below `limits.rows`.
pub(super) fn write_slot(
    step: &StepInput,
    factors: [f32; 3],
    extra_start: usize,
    layout: InputLayout,
    limits: InputLimits,
    slot: &mut [u32],
) {
    let count: usize = step.parts.iter().map(|part| part.episodes.len()).sum();
    assert!(
        count <= limits.limits.episodes,
        "{count} episodes in a step; at most {} are allowed",
        limits.limits.episodes
    );
    // The lengths grow from episode to episode, so they are also the indices of the next episode's first entries.
    let mut step_record = StepRecord {
        factors,
        scale: (1.0 / count.max(1) as f64) as f32,
        extra_start: extra_start as i32,
        ..Default::default()
    };
    let mut map_start = 0;
    for part in &step.parts {
        let (mut dropout_token, mut dropout_map) = (0u32, 0u32);
        for episode in &part.episodes {
            check_episode(episode, limits);
            let tokens = episode.classes + episode.support.len();
            let seed = [part.dropout_seed as u32, (part.dropout_seed >> 32) as u32];
            let episode_record = EpisodeRecord {
                first_token: step_record.tokens,
                tokens: tokens as i32,
                first_item: step_record.items,
                items: episode.support.len() as i32,
                first_class: step_record.classes,
                classes: episode.classes as i32,
                first_query: step_record.queries,
                queries: episode.queries.len() as i32,
                seed,
                dropout_token,
                dropout_map,
                map_start,
                padding: [0; 3],
            };
            let start = layout.episodes as usize + 16 * step_record.episodes as usize;
            write_words(slot, start, &[episode_record]);
            write_episode(episode, &episode_record, layout, slot);
            step_record.episodes += 1;
            step_record.tokens += episode_record.tokens;
            step_record.items += episode_record.items;
            step_record.classes += episode_record.classes;
            step_record.queries += episode_record.queries;
            dropout_token = dropout_token.wrapping_add(tokens as u32);
            dropout_map = dropout_map.wrapping_add((limits.heads * map_len(tokens)) as u32);
            map_start += (limits.heads * map_len(tokens)) as i32;
        }
    }
    write_words(slot, 0, &[step_record]);
}

/// Copies the words of `values` into the slot, from word number `start` on.
fn write_words<T: Pod>(slot: &mut [u32], start: usize, values: &[T]) {
    let words: &[u32] = bytemuck::cast_slice(values);
    slot[start..start + words.len()].copy_from_slice(words);
}

/// Panics if the episode exceeds the limits or has a label or row number that does not exist.
fn check_episode(episode: &EpisodeInput, limits: InputLimits) {
    let EpisodeInput { classes, support, queries } = episode;
    let InputLimits { limits, classes: max_classes, rows, .. } = limits;
    assert!(*classes <= max_classes, "{classes} classes; the model has at most {max_classes}");
    assert!(
        support.len() <= limits.support,
        "{} support items in an episode; at most {} are allowed",
        support.len(),
        limits.support
    );
    assert!(
        queries.len() <= limits.queries,
        "{} queries in an episode; at most {} are allowed",
        queries.len(),
        limits.queries
    );
    let labels = support.iter().map(|item| item.given).chain(queries.iter().map(|query| query.class));
    assert!(labels.clone().all(|label| (label as usize) < *classes), "labels must be below {classes}");
    let indices = support.iter().map(|item| item.row).chain(queries.iter().map(|query| query.row));
    assert!(indices.clone().all(|row| (row as usize) < rows), "rows must be below {rows}");
}

/// Writes the entries of one episode into the lists of the slot: classes, tokens, support items sorted by given label,
/// and queries. `record` says where they start.
fn write_episode(episode: &EpisodeInput, record: &EpisodeRecord, layout: InputLayout, slot: &mut [u32]) {
    let mut support = episode.support.clone();
    support.sort_by_key(|item| item.given);
    let mut first_item = record.first_item;
    for class in 0..episode.classes {
        let items = support.iter().filter(|item| item.given as usize == class).count() as i32;
        let token = record.first_token + class as i32;
        let start = layout.classes as usize + 4 * (record.first_class as usize + class);
        write_words(slot, start, &[ClassRecord { token, first_item, items, padding: 0 }]);
        slot[layout.tokens as usize + token as usize] = class as u32 | LABEL_FLAG;
        first_item += items;
    }
    for (number, item) in support.iter().enumerate() {
        let index = record.first_item as usize + number;
        slot[layout.rows as usize + index] = item.row;
        slot[layout.labels as usize + index] = item.given | if item.mislabelled { LABEL_FLAG } else { 0 };
        slot[layout.tokens as usize + record.first_token as usize + episode.classes + number] = item.given;
    }
    for (number, query) in episode.queries.iter().enumerate() {
        let index = record.first_query as usize + number;
        slot[layout.query_rows as usize + index] = query.row;
        slot[layout.query_classes as usize + index] = query.class;
    }
}
