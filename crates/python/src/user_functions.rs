//! User-defined methods and noise types: Python functions that take part in an evaluation.
//!
//! The library evaluates on threads of its own and knows the functions as a [`PythonMethod`] or a [`PythonNoise`],
//! which send a request ([`Message`]) and wait for the answer. The thread that called `evaluate` receives the requests
//! and calls the functions ([`UserFunctions::answer`]): only on that thread does Ctrl-C reach them. The functions may
//! call trueshot, so the waiting threads are those of a pool that other calls do not use
//! ([`crate::thread_pools::own_pool`]).
//!
//! An episode is a small classification task: N classes with K labelled support items each, some of whose labels are
//! wrong, and Q queries to classify. A method gets many episodes in one call ([`Batch`]); while it processes one batch,
//! the rows of the next batch are gathered.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use rayon::prelude::*;
use trueshot::method::{Fitted, Method, RowClassifier, RowPrediction, RowTask};
use trueshot::noise::{CleanSupport, LabelNoise, NoisyLabels};
use trueshot::rng::Rng;
use trueshot::task::Task;
use trueshot::{Embeddings, Error};

/// The approximate size of the features of one [`Batch`], in bytes (16 MiB): small enough to stay in the cache of most
/// processors.
const BATCH_BYTES: usize = 16 << 20;

/// A message from the threads of an evaluation to the calling thread.
pub enum Message {
    /// The number of finished episodes.
    Done(u64),
    /// A method must classify the queries of these episodes.
    Classify(Batch),
    /// A noise type must choose the labels of a support set.
    Relabel(LabelQuestion),
}

/// A request to classify the queries of E episodes, each with N classes of up to K support items, Q queries and
/// features of dimension D. Arrays are flat, in C order.
pub struct Batch {
    /// Index into [`UserFunctions::methods`].
    method: usize,
    /// `[E]`: the numbers of the episodes.
    episodes: Vec<i64>,
    /// `[E, N, K, D]`, grouped by given label; zeros where a class has fewer than K items.
    support: Vec<f32>,
    /// `[E, N, K]`, the given label; -1 where a class has fewer than K items.
    labels: Vec<i64>,
    /// `[E, Q, D]`, sorted by class.
    queries: Vec<f32>,
    /// E, N, K, Q, D.
    shape: [usize; 5],
    /// Where the result, or the reason why the method failed, is sent.
    answer: Sender<trueshot::Result<Predictions>>,
}

/// The result for a [`Batch`], flat like its arrays.
struct Predictions {
    /// `[E, Q]`: the predicted class of every query, from 0 to N - 1.
    classes: Vec<i64>,
    /// `[E, N, K]`: the probability that the label of each support item is wrong; `None` if the method does not say.
    p_wrong: Option<Vec<f32>>,
}

/// A request to a noise type to replace the labels of one support set.
pub struct LabelQuestion {
    /// Index into [`UserFunctions::noises`].
    noise: usize,
    /// The number of the episode.
    episode: u64,
    /// The true class of every item, an index into `classes`.
    labels: Vec<i64>,
    /// The row of every item in the data.
    rows: Vec<i64>,
    /// The classes of the episode, as indices into the classes of the data.
    classes: Vec<i64>,
    /// A seed for the random numbers of the function; it depends on the evaluation's seed and the episode only.
    seed: u64,
    /// Where the result, or the request to stop, is sent.
    answer: Sender<trueshot::Result<NoisyLabels>>,
}

/// A `trueshot.Method` object: the fields are read from its attributes of the same names.
#[derive(FromPyObject)]
pub struct UserMethod {
    name: String,
    /// Whether the method classifies all queries of an episode together; reports mark such methods.
    transductive: bool,
    /// The largest number of episodes per call.
    max_tasks: u64,
    /// Called with support `[E, N, K, D]`, labels `[E, N, K]`, queries `[E, Q, D]` and the numbers of the episodes
    /// `[E]`; returns the classes `[E, Q]` as int64 and P(wrong) `[E, N, K]` as float32 or None, both flat.
    run: Py<PyAny>,
}

impl UserMethod {
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The Python functions of an evaluation, held by the thread that calls them.
pub struct UserFunctions {
    pub methods: Vec<UserMethod>,
    /// Functions of true labels, rows, classes, episode and seed, as in [`LabelQuestion`]; they return the given labels
    /// and a list of pairs (item, row of the outlier that replaces it).
    pub noises: Vec<Py<PyAny>>,
    /// Whether a method that fails ends the evaluation. Otherwise the evaluation continues without the method.
    pub stop_on_failure: bool,
}

impl UserFunctions {
    /// Answers a message by calling a function. [`Message::Done`] needs no answer.
    ///
    /// # Errors
    /// The exception of the function, if it ends the evaluation.
    pub fn answer(&self, py: Python<'_>, message: Message) -> PyResult<()> {
        match message {
            Message::Done(_) => Ok(()),
            Message::Classify(batch) => self.classify(py, batch),
            Message::Relabel(question) => self.relabel(py, question),
        }
    }

    fn classify(&self, py: Python<'_>, batch: Batch) -> PyResult<()> {
        let (method, answer) = (&self.methods[batch.method], batch.answer.clone());
        let error = match call_method(py, method, batch) {
            Ok(predictions) => {
                let _ = answer.send(Ok(predictions));
                return Ok(());
            }
            Err(error) => error,
        };
        // Ctrl-C and similar exceptions end the evaluation, not only the method.
        if !error.is_instance_of::<PyException>(py) {
            let _ = answer.send(Err(Error::Interrupted));
            return Err(error);
        }
        // `trueshot.MethodError` has the attributes `problem` and `episode`.
        let value = error.value(py);
        let problem = value.getattr("problem").and_then(|problem| problem.extract::<String>());
        let failed = Error::MethodFailed {
            method: method.name.clone(),
            episode: value.getattr("episode").and_then(|episode| episode.extract()).unwrap_or(0),
            problem: problem.unwrap_or_else(|_| error.to_string()),
        };
        let _ = answer.send(Err(failed));
        if self.stop_on_failure { Err(error) } else { Ok(()) }
    }

    fn relabel(&self, py: Python<'_>, question: LabelQuestion) -> PyResult<()> {
        let answer = question.answer.clone();
        match call_noise(py, &self.noises[question.noise], question) {
            Ok(labels) => {
                let _ = answer.send(Ok(labels));
                Ok(())
            }
            Err(error) => {
                let _ = answer.send(Err(Error::Interrupted));
                Err(error)
            }
        }
    }
}

fn call_method(py: Python<'_>, method: &UserMethod, batch: Batch) -> PyResult<Predictions> {
    let [episodes, classes, items, queries, dim] = batch.shape;
    let support = PyArray1::from_vec(py, batch.support).reshape([episodes, classes, items, dim])?;
    let labels = PyArray1::from_vec(py, batch.labels).reshape([episodes, classes, items])?;
    let query_rows = PyArray1::from_vec(py, batch.queries).reshape([episodes, queries, dim])?;
    let numbers = PyArray1::from_vec(py, batch.episodes);
    let returned = method.run.bind(py).call1((support, labels, query_rows, numbers))?;
    let (predicted, p_wrong): (PyReadonlyArray1<'_, i64>, Option<PyReadonlyArray1<'_, f32>>) =
        returned.extract()?;
    let p_wrong = p_wrong.map(|p_wrong| p_wrong.as_slice().map(<[f32]>::to_vec)).transpose()?;
    Ok(Predictions { classes: predicted.as_slice()?.to_vec(), p_wrong })
}

fn call_noise(py: Python<'_>, function: &Py<PyAny>, question: LabelQuestion) -> PyResult<NoisyLabels> {
    let LabelQuestion { episode, labels, rows, classes, seed, .. } = question;
    let array = |values| PyArray1::from_vec(py, values);
    let arguments = (array(labels), array(rows), array(classes), episode, seed);
    let (given, outliers) = function.bind(py).call1(arguments)?.extract()?;
    Ok(NoisyLabels { given, outliers })
}

/// A user-defined method as the library sees it, on the threads of the evaluation.
pub struct PythonMethod {
    /// Index into [`UserFunctions::methods`].
    position: usize,
    name: String,
    transductive: bool,
    max_tasks: u64,
    data: Arc<Embeddings>,
    /// The rows of outliers; `None` if outliers are rows of `data`.
    outliers: Option<Arc<Embeddings>>,
    sender: Sender<Message>,
}

impl PythonMethod {
    /// The method at `position` of [`UserFunctions::methods`], for an evaluation of `data`.
    pub fn new(
        position: usize,
        method: &UserMethod,
        (data, outliers): (&Arc<Embeddings>, Option<&Arc<Embeddings>>),
        sender: Sender<Message>,
    ) -> Self {
        let UserMethod { name, transductive, max_tasks, .. } = method;
        PythonMethod {
            position,
            name: name.clone(),
            transductive: *transductive,
            max_tasks: *max_tasks,
            data: Arc::clone(data),
            outliers: outliers.map(Arc::clone),
            sender,
        }
    }

    /// Gathers the arrays of some tasks. Returns the request, the receiver of its answer, and the order of the support
    /// items of each task in the arrays.
    fn batch(
        &self,
        tasks: &[RowTask<'_>],
    ) -> (Batch, Receiver<trueshot::Result<Predictions>>, Vec<ItemsByClass>) {
        let items_of_tasks: Vec<ItemsByClass> = tasks.iter().map(items_by_class).collect();
        let dim = self.data.dim();
        // All episodes of an evaluation have the same numbers of classes and queries.
        let classes = tasks.first().map_or(0, |task| task.classes.len());
        let items = items_of_tasks.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let queries = tasks.first().map_or(0, |task| task.queries().count());
        // Where a class has fewer than K = `items` items, the label stays -1 and, below, the row stays zeros.
        let mut labels = vec![-1; tasks.len() * classes * items];
        for (labels, by_class) in labels.chunks_mut(classes * items).zip(&items_of_tasks) {
            for (class, members) in by_class.iter().enumerate() {
                labels[class * items..][..members.len()].fill(class as i64);
            }
        }
        let mut support = vec![0.0; tasks.len() * classes * items * dim];
        let rows = support.par_chunks_mut(classes * items * dim).zip(tasks).zip(&items_of_tasks);
        rows.for_each(|((rows, task), by_class)| self.fill_support(rows, task, by_class, items));
        // An evaluation of label detection alone has no queries, and the size of chunks must not be 0.
        let mut query_rows = vec![0.0; tasks.len() * queries * dim];
        let rows = query_rows.par_chunks_mut((queries * dim).max(1)).zip(tasks);
        rows.for_each(|(rows, task)| {
            let features = self.data.features();
            rows.chunks_mut(dim)
                .zip(task.queries())
                .for_each(|(out, row)| features.decode_row(row as usize, out));
        });
        let (answer, receiver) = channel();
        let batch = Batch {
            method: self.position,
            episodes: tasks.iter().map(|task| task.episode as i64).collect(),
            support,
            labels,
            queries: query_rows,
            shape: [tasks.len(), classes, items, queries, dim],
            answer,
        };
        (batch, receiver, items_of_tasks)
    }

    /// Writes the support rows of one task into `rows` `[N, K, D]`, with K = `items`.
    fn fill_support(&self, rows: &mut [f32], task: &RowTask<'_>, by_class: &ItemsByClass, items: usize) {
        let dim = self.data.dim();
        for (class, members) in by_class.iter().enumerate() {
            let outs = rows[class * items * dim..].chunks_mut(dim);
            for (out, &item) in outs.zip(members) {
                let item = &task.support[item];
                // An item without a true class is an outlier, and its row is one of the outlier rows.
                let outliers = self.outliers.as_ref().filter(|_| item.truth.is_none());
                outliers.unwrap_or(&self.data).features().decode_row(item.row as usize, out);
            }
        }
    }
}

/// For every class of a task, the items with its given label, as indices into the support set. The k-th item of class n
/// is at `[n, k]` of the arrays of a [`Batch`].
type ItemsByClass = Vec<Vec<usize>>;

fn items_by_class(task: &RowTask<'_>) -> ItemsByClass {
    let mut by_class = vec![Vec::new(); task.classes.len()];
    task.support.iter().enumerate().for_each(|(index, item)| by_class[item.given as usize].push(index));
    by_class
}

impl Method for PythonMethod {
    fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> trueshot::Result<Fitted> {
        unreachable!("an evaluation calls the row classifier")
    }

    fn is_transductive(&self) -> bool {
        self.transductive
    }

    fn row_classifier(&self) -> Option<&dyn RowClassifier> {
        Some(self)
    }
}

impl RowClassifier for PythonMethod {
    /// Divides the tasks into batches of about [`BATCH_BYTES`] and sends them to the calling thread one after the
    /// other. The next batch is gathered before the answer to the previous one is awaited.
    fn classify(&self, tasks: &[RowTask<'_>]) -> trueshot::Result<Vec<RowPrediction>> {
        let largest = tasks.iter().map(|task| task.support.len() + task.queries().count()).max().unwrap_or(0);
        let episode_bytes = (largest * self.data.dim() * size_of::<f32>()).max(1);
        let mut chunks = tasks.chunks((BATCH_BYTES / episode_bytes).max(1));
        let mut next = chunks.next().map(|tasks| (tasks, self.batch(tasks)));
        let mut row_predictions = Vec::with_capacity(tasks.len());
        while let Some((tasks, (batch, receiver, items_of_tasks))) = next {
            let items = batch.shape[2];
            let queries = batch.shape[3];
            // If the calling thread is gone or stopping, it drops the message without an answer, and `recv` fails.
            let _ = self.sender.send(Message::Classify(batch));
            next = chunks.next().map(|tasks| (tasks, self.batch(tasks)));
            let predictions = receiver.recv().unwrap_or(Err(Error::Interrupted))?;
            let failed = |task: &RowTask<'_>, problem: &str| Error::MethodFailed {
                method: self.name.clone(),
                episode: task.episode,
                problem: problem.into(),
            };
            if predictions.classes.len() != tasks.len() * queries {
                return Err(failed(&tasks[0], "it gave another number of predictions than queries"));
            }
            for (index, (task, by_class)) in tasks.iter().zip(&items_of_tasks).enumerate() {
                let predicted = predictions.classes[index * queries..][..queries].iter();
                let is_class = |class: &u32| (*class as usize) < task.classes.len();
                let checked = predicted.map(|&class| u32::try_from(class).ok().filter(is_class));
                let classes = checked.collect::<Option<Vec<u32>>>();
                let classes =
                    classes.ok_or_else(|| failed(task, "it predicted a class that is not in the episode"))?;
                let per_episode = task.classes.len() * items;
                let p_wrong = predictions.p_wrong.as_ref().and_then(|all| {
                    let of_task = all.get(index * per_episode..(index + 1) * per_episode)?;
                    in_order_of_items(by_class, of_task, items)
                });
                row_predictions.push(RowPrediction { classes, p_wrong });
            }
        }
        Ok(row_predictions)
    }

    fn max_tasks(&self) -> u64 {
        self.max_tasks
    }
}

/// Reorders values `[N, K]` of one task, with K = `items`, to one per item in the order of its support set.
fn in_order_of_items(by_class: &ItemsByClass, values: &[f32], items: usize) -> Option<Vec<f32>> {
    let mut ordered = vec![0.0; by_class.iter().map(Vec::len).sum()];
    for (class, members) in by_class.iter().enumerate() {
        for (position, &item) in members.iter().enumerate() {
            *ordered.get_mut(item)? = values[class * items + position];
        }
    }
    Some(ordered)
}

/// A user-defined noise type as the library sees it, on the threads of the evaluation.
pub struct PythonNoise {
    /// Index into [`UserFunctions::noises`].
    pub position: usize,
    pub name: String,
    pub sender: Sender<Message>,
}

impl LabelNoise for PythonNoise {
    fn name(&self) -> &str {
        &self.name
    }

    fn relabel(&self, support: &CleanSupport<'_>, rng: &mut Rng) -> trueshot::Result<NoisyLabels> {
        let (answer, receiver) = channel();
        let to_i64 = |values: &[u32]| values.iter().map(|&value| i64::from(value)).collect();
        let question = LabelQuestion {
            noise: self.position,
            episode: support.episode.index,
            labels: to_i64(&support.labels),
            rows: to_i64(&support.rows),
            classes: support.episode.classes.iter().map(|draw| i64::from(draw.class)).collect(),
            seed: rng.number(),
            answer,
        };
        let _ = self.sender.send(Message::Relabel(question));
        receiver.recv().unwrap_or(Err(Error::Interrupted))
    }

    /// Functions may have state, for instance a random generator, so episodes are drawn in order.
    fn is_sequential(&self) -> bool {
        true
    }
}
