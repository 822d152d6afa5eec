//! The input of a training step, and its form on the device (`TranfsStep` in `kernels/tranfs.cu`).

use bytemuck::{Pod, Zeroable};

/// The input of one step.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The learning rate.
    pub rate: f64,
    /// The episodes, divided into parts.
    pub parts: Vec<PartInput>,
    /// Rows that are not in the data set, such as blended ones, one after the other. The first has the number that follows
    /// the last row of the data set.
    pub extra_rows: Vec<f32>,
}

/// Episodes that share a dropout seed.
#[derive(Debug, Clone)]
pub struct PartInput {
    /// The seed of dropout.
    pub dropout_seed: u64,
    /// The episodes.
    pub episodes: Vec<EpisodeInput>,
}

/// One episode: rows of the data set with their labels, in any order.
#[derive(Debug, Clone)]
pub struct EpisodeInput {
    /// The number of classes.
    pub classes: usize,
    /// The support items.
    pub support: Vec<SupportItem>,
    /// The queries.
    pub queries: Vec<Query>,
}

/// One support item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportItem {
    /// The number of the item's row.
    pub row: u32,
    /// The given label, a class of the episode.
    pub given: u32,
    /// Whether the given label is wrong.
    pub mislabelled: bool,
}

/// One query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// The number of the query's row.
    pub row: u32,
    /// The true class, a class of the episode.
    pub class: u32,
}

/// The largest sizes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Episodes per step.
    pub episodes: usize,
    /// Support items per episode.
    pub support: usize,
    /// Queries per episode.
    pub queries: usize,
}

/// Marks mislabelled items and class tokens.
const LABEL_FLAG: u32 = 1 << 31;

/// The start of each part of a step's input, in words, in the order of `struct Tranfs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct InputLayout {
    pub slot_len: i32,
    episodes: i32,
    classes: i32,
    rows: i32,
    labels: i32,
    tokens: i32,
    query_rows: i32,
    query_classes: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct StepRecord {
    factors: [f32; 3],
    scale: f32,
    episodes: i32,
    tokens: i32,
    items: i32,
    classes: i32,
    queries: i32,
    extra_start: i32,
    padding: [i32; 6],
}

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
    seed: [u32; 2],
    dropout_token: u32,
    dropout_map: u32,
    map_start: i32,
    padding: [i32; 3],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ClassRecord {
    token: i32,
    first_item: i32,
    items: i32,
    padding: i32,
}

/// The number of attention weights of a head as dropout counts them: rows are padded to 16.
pub(super) fn map_len(tokens: usize) -> usize {
    tokens * tokens.next_multiple_of(16)
}

impl InputLayout {
    /// The layout for steps of at most these sizes; `classes` is the most classes of an episode.
    pub fn new(limits: Limits, classes: usize) -> Self {
        let Limits { episodes, support, queries } = limits;
        let mut end = 0;
        let mut add = |words: usize| {
            let start = end;
            end += words.next_multiple_of(4);
            i32::try_from(start).expect("the input of a step is below 8 GiB")
        };
        add(size_of::<StepRecord>() / 4);
        let mut layout = InputLayout {
            slot_len: 0,
            episodes: add(episodes * size_of::<EpisodeRecord>() / 4),
            classes: add(episodes * classes * size_of::<ClassRecord>() / 4),
            rows: add(episodes * support),
            labels: add(episodes * support),
            tokens: add(episodes * (support + classes)),
            query_rows: add(episodes * queries),
            query_classes: add(episodes * queries),
        };
        layout.slot_len = add(0);
        layout
    }
}

/// What a step's input is checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputLimits {
    pub limits: Limits,
    /// Maximum number of classes per episode.
    pub classes: usize,
    /// Rows of the data set and the step together.
    pub rows: usize,
    pub heads: usize,
}

/// Writes a step's input into the words of its slot. `factors` are those of the optimiser, `extra_start` is the step's first
/// extra row.
///
/// # Panics
/// If an index or a size is too large.
pub(super) fn write_slot(
    step: &StepInput,
    factors: [f32; 3],
    extra_start: usize,
    layout: InputLayout,
    limits: InputLimits,
    slot: &mut [u32],
) {
    let count: usize = step.parts.iter().map(|part| part.episodes.len()).sum();
    assert!(count <= limits.limits.episodes, "{count} episodes; at most {}", limits.limits.episodes);
    let mut record = StepRecord {
        factors,
        scale: (1.0 / count.max(1) as f64) as f32,
        extra_start: extra_start as i32,
        ..Default::default()
    };
    let mut map_start = 0;
    for part in &step.parts {
        let (mut dropout_token, mut dropout_map) = (0u32, 0u32);
        for episode in &part.episodes {
            check(episode, limits);
            let tokens = episode.classes + episode.support.len();
            let seed = [part.dropout_seed as u32, (part.dropout_seed >> 32) as u32];
            let own = EpisodeRecord {
                first_token: record.tokens,
                tokens: tokens as i32,
                first_item: record.items,
                items: episode.support.len() as i32,
                first_class: record.classes,
                classes: episode.classes as i32,
                first_query: record.queries,
                queries: episode.queries.len() as i32,
                seed,
                dropout_token,
                dropout_map,
                map_start,
                padding: [0; 3],
            };
            put(slot, layout.episodes as usize + 16 * record.episodes as usize, &[own]);
            write_episode(episode, &own, layout, slot);
            record.episodes += 1;
            record.tokens += own.tokens;
            record.items += own.items;
            record.classes += own.classes;
            record.queries += own.queries;
            dropout_token = dropout_token.wrapping_add(tokens as u32);
            dropout_map = dropout_map.wrapping_add((limits.heads * map_len(tokens)) as u32);
            map_start += (limits.heads * map_len(tokens)) as i32;
        }
    }
    put(slot, 0, &[record]);
}

fn put<T: Pod>(slot: &mut [u32], start: usize, values: &[T]) {
    let words: &[u32] = bytemuck::cast_slice(values);
    slot[start..start + words.len()].copy_from_slice(words);
}

fn check(episode: &EpisodeInput, limits: InputLimits) {
    let EpisodeInput { classes, support, queries } = episode;
    let InputLimits { limits, classes: most_classes, rows, .. } = limits;
    assert!(*classes <= most_classes, "{classes} classes; the model has at most {most_classes}");
    assert!(support.len() <= limits.support, "{} items; at most {}", support.len(), limits.support);
    assert!(queries.len() <= limits.queries, "{} queries; at most {}", queries.len(), limits.queries);
    let labels = support.iter().map(|item| item.given).chain(queries.iter().map(|query| query.class));
    assert!(labels.clone().all(|label| (label as usize) < *classes), "labels must be below {classes}");
    let indices = support.iter().map(|item| item.row).chain(queries.iter().map(|query| query.row));
    assert!(indices.clone().all(|row| (row as usize) < rows), "rows must be below {rows}");
}

/// Writes the items sorted by label, the classes, the tokens and the queries of an episode.
fn write_episode(episode: &EpisodeInput, own: &EpisodeRecord, layout: InputLayout, slot: &mut [u32]) {
    let mut support = episode.support.clone();
    support.sort_by_key(|item| item.given);
    let mut first = own.first_item;
    for class in 0..episode.classes {
        let items = support.iter().filter(|item| item.given as usize == class).count() as i32;
        let token = own.first_token + class as i32;
        let place = layout.classes as usize + 4 * (own.first_class as usize + class);
        put(slot, place, &[ClassRecord { token, first_item: first, items, padding: 0 }]);
        slot[layout.tokens as usize + token as usize] = class as u32 | LABEL_FLAG;
        first += items;
    }
    for (number, item) in support.iter().enumerate() {
        let place = own.first_item as usize + number;
        slot[layout.rows as usize + place] = item.row;
        slot[layout.labels as usize + place] = item.given | if item.mislabelled { LABEL_FLAG } else { 0 };
        slot[layout.tokens as usize + own.first_token as usize + episode.classes + number] = item.given;
    }
    for (number, query) in episode.queries.iter().enumerate() {
        let place = own.first_query as usize + number;
        slot[layout.query_rows as usize + place] = query.row;
        slot[layout.query_classes as usize + place] = query.class;
    }
}
