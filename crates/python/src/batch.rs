//! Many tasks in one call: an Arrow table with one task per row in, an Arrow table with one result per row out.
//!
//! A task is one small labelled collection (a support set): its features and labels are the entries of two list columns
//! ([`crate::columns`]). [`run_tasks`] is the common loop; [`audit_batch`], [`fit_batch`] and [`prototypes_batch`] say
//! what to compute for a task, and a [`TaskOutput`] which columns the results become.
//!
//! Tasks are independent and are divided among threads, so a result depends only on its own row. A task that fails has
//! an `error` instead of a result; only a table with wrong columns raises an exception.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, Float32Builder, Float64Builder, ListBuilder, StringBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, make_array};
use arrow_data::transform::MutableArrayData;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rayon::prelude::*;
use trueshot::audit::{self, Audit};
use trueshot::guard::caught;
use trueshot::method::NamedMethod;
use trueshot::predictor::{Predictor, UncalibratedPredictor, is_large};
use trueshot::progress::Progress;
use trueshot::{Embeddings, Error};

use crate::arrow_capsules::{Batches, reader};
use crate::columns::TaskSchema;
use crate::exceptions::{INTERNAL_ERROR, error_text, to_exception};
use crate::interruptible::{Channel, run_interruptible};
use crate::methods;
use crate::thread_pools::own_pool;

/// The result of a task, or why it failed.
type TaskResult<T> = Result<T, String>;

/// How the results of one function become columns. The table of results has the carried columns of the input (such as
/// the name of each task), then these columns, then `error`.
trait TaskOutput: Send {
    /// The result of one task.
    type Output: Send;
    /// Names and types of the columns.
    fn fields() -> Vec<Field>;
    /// An upper bound on the bytes, or list entries, that a result takes in any one column.
    fn size(output: &Self::Output) -> usize;
    /// The columns, in the order of [`TaskOutput::fields`] and with one entry per task; null for failed tasks.
    fn columns(results: &[TaskResult<Self::Output>]) -> Vec<ArrayRef>;
}

/// The names of the columns to use, as the caller gave them.
struct ColumnNames {
    features: String,
    labels: String,
    /// Columns that are copied to the result; `None` for the default, `task` if it exists.
    carried: Option<Vec<String>>,
}

/// Computes all tasks of a table, Arrow batch by Arrow batch, with `compute` from a support set to a result. After
/// Ctrl-C, the `Progress` that `compute` gets tells running tasks to stop, and no further ones are started.
fn run_tasks<A: TaskOutput>(
    py: Python<'_>,
    table: &Bound<'_, PyAny>,
    columns: ColumnNames,
    threads: Option<i64>,
    compute: impl Fn(Embeddings, &dyn Progress) -> trueshot::Result<A::Output> + Sync + Send,
) -> PyResult<Batches> {
    let batches = reader(table)?;
    let input = batches.schema();
    let task_schema =
        TaskSchema::find(&input, &columns.features, &columns.labels).map_err(PyTypeError::new_err)?;
    let carried = carried_columns(&input, columns.carried).map_err(PyTypeError::new_err)?;
    let mut fields: Vec<Field> = carried.iter().map(|&column| input.field(column).clone()).collect();
    fields.extend(A::fields());
    fields.push(Field::new("error", DataType::Utf8, true));
    let mut names = HashSet::new();
    if let Some(repeated) = fields.iter().find(|field| !names.insert(field.name())) {
        let name = repeated.name();
        return Err(PyTypeError::new_err(format!("column '{name}' would occur twice: remove it from carry")));
    }
    let schema = Arc::new(Schema::new(fields));
    // One task: errors of the support set, of the computation and of the size become the text of its `error`.
    let run_task = |support: TaskResult<Embeddings>, progress: &dyn Progress| -> TaskResult<A::Output> {
        let output = compute(support?, progress).map_err(|error: Error| error_text(&error))?;
        match A::size(&output) {
            size if size > MAX_COLUMN_SIZE => {
                Err(format!("the result is too large for a table: {size}, the maximum is {MAX_COLUMN_SIZE}"))
            }
            _ => Ok(output),
        }
    };
    // The table of results for some rows of an input batch.
    let output_batch = |batch: &RecordBatch, rows: Range<usize>, results: &[TaskResult<A::Output>]| {
        let carried = carried.iter().map(|&column| copied(batch.column(column), &rows));
        let mut columns = carried.collect::<Result<Vec<ArrayRef>, _>>()?;
        columns.extend(A::columns(results));
        columns.push(errors(results));
        RecordBatch::try_new(schema.clone(), columns)
    };
    // All tasks of an input batch, in parallel. One input batch gives several output batches if a column would be too
    // large.
    let process_batch = |batch: RecordBatch, channel: &Channel<'_, ()>| {
        let tasks = task_schema.columns(&batch);
        let run = |task: usize| match channel.check_stopped() {
            ControlFlow::Break(()) => Err("interrupted".into()),
            ControlFlow::Continue(()) => caught(|| run_task(tasks.support(task), channel))
                .unwrap_or_else(|| Err(INTERNAL_ERROR.into())),
        };
        let results: Vec<TaskResult<A::Output>> = (0..batch.num_rows()).into_par_iter().map(run).collect();
        let sizes = results.iter().map(|result| result.as_ref().map_or(0, A::size));
        let outputs = split_by_size(sizes, MAX_COLUMN_SIZE)
            .into_iter()
            .map(|rows| output_batch(&batch, rows.clone(), &results[rows]));
        outputs.collect::<Result<Vec<RecordBatch>, _>>()
    };
    let process_all = |channel: &Channel<'_, ()>| {
        let batches = batches.take_while(|_| channel.check_stopped().is_continue());
        Ok(batches
            .map(|batch| process_batch(batch?, channel))
            .collect::<Result<Vec<Vec<RecordBatch>>, ArrowError>>())
    };
    // The pool is not shared, because reading the table may run Python code: it may be a stream of a generator. After
    // Ctrl-C this returns the exception, never the incomplete results.
    let done = run_interruptible(py, &own_pool(threads)?, process_all, |()| Ok(()))?;
    let done = done.map_err(|error| PyTypeError::new_err(format!("cannot read this Arrow data: {error}")))?;
    Ok(Batches::new(schema, done.concat()))
}

/// The maximum number of bytes or list entries of a column in one batch: the offsets of Arrow's lists and strings are
/// signed 32-bit numbers.
const MAX_COLUMN_SIZE: usize = i32::MAX as usize;

/// Divides rows, given their sizes, into consecutive ranges whose sizes sum to at most `max`; a single larger row has
/// a range of its own. Without rows, returns one empty range, so that the result has its columns.
fn split_by_size(sizes: impl Iterator<Item = usize>, max: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut end, mut total) = (Vec::new(), 0, 0, 0usize);
    for size in sizes {
        total = total.saturating_add(size);
        if total > max && end > start {
            ranges.push(start..end);
            (start, total) = (end, size);
        }
        end += 1;
    }
    ranges.push(start..end);
    ranges
}

/// The indices of the carried columns: the given ones, or `task` if it exists.
fn carried_columns(schema: &Schema, names: Option<Vec<String>>) -> Result<Vec<usize>, String> {
    match names {
        None => Ok(schema.index_of("task").ok().into_iter().collect()),
        Some(names) => {
            let index_of = |name: &String| {
                schema.index_of(name).map_err(|_| format!("the table has no column '{name}' to carry"))
            };
            names.iter().map(index_of).collect()
        }
    }
}

/// A copy of some rows of a column. All columns of a batch that comes from another program are freed together, so a slice
/// would keep the features in memory as long as the results.
fn copied(column: &ArrayRef, rows: &Range<usize>) -> Result<ArrayRef, ArrowError> {
    let data = column.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, rows.len());
    copy.try_extend(0, rows.start, rows.end)?;
    Ok(make_array(copy.freeze()))
}

/// The column `error`: null for tasks that succeeded.
fn errors<T>(results: &[TaskResult<T>]) -> ArrayRef {
    let mut errors = StringBuilder::new();
    results.iter().for_each(|result| errors.append_option(result.as_ref().err()));
    Arc::new(errors.finish())
}

/// An upper bound for a list of names: their bytes, but at least one per name, because the list has an entry for each.
fn names_size(classes: &[String]) -> usize {
    classes.iter().map(|class| class.len().max(1)).sum()
}

/// A list column with one list per task, to which `append` adds the entries of a result; null for failed tasks.
fn lists<T, B: ArrayBuilder>(
    results: &[TaskResult<T>],
    builder: B,
    mut append: impl FnMut(&mut B, &T),
) -> ArrayRef {
    let mut lists = ListBuilder::new(builder);
    for result in results {
        if let Ok(output) = result {
            append(lists.values(), output);
        }
        lists.append(result.is_ok());
    }
    Arc::new(lists.finish())
}

/// A nullable list column with nullable entries of type `kind`.
fn list_of(name: &str, kind: DataType) -> Field {
    Field::new(name, DataType::List(Arc::new(Field::new("item", kind, true))), true)
}

/// The audit of a task: lists with one entry per row of the support set, and the expected number of wrong labels.
struct AuditOutput;

impl TaskOutput for AuditOutput {
    type Output = Audit;

    fn fields() -> Vec<Field> {
        vec![
            list_of("p_wrong", DataType::Float32),
            list_of("verdict", DataType::Utf8),
            list_of("suggested", DataType::Utf8),
            list_of("weight", DataType::Float32),
            Field::new("expected_wrong", DataType::Float64, true),
        ]
    }

    fn size(audit: &Audit) -> usize {
        // Per item: one entry in columns of numbers, at most 8 bytes in `verdict`, the name in `suggested`.
        audit.items.iter().map(|item| item.suggested.as_ref().map_or(0, String::len).max(8)).sum()
    }

    fn columns(results: &[TaskResult<Audit>]) -> Vec<ArrayRef> {
        let numbers = |of: fn(&audit::AuditedItem) -> f32| {
            lists(results, Float32Builder::new(), |list, audit: &Audit| {
                audit.items.iter().for_each(|item| list.append_value(of(item)));
            })
        };
        let names = |of: fn(&audit::AuditedItem) -> Option<&str>| {
            lists(results, StringBuilder::new(), |list, audit: &Audit| {
                audit.items.iter().for_each(|item| list.append_option(of(item)));
            })
        };
        let mut expected = Float64Builder::new();
        results.iter().for_each(|result| {
            expected.append_option(result.as_ref().ok().map(|audit| audit.expected_wrong))
        });
        vec![
            numbers(|item| item.p_wrong),
            names(|item| Some(item.verdict.name())),
            names(|item| item.suggested.as_deref()),
            numbers(|item| item.weight),
            Arc::new(expected.finish()),
        ]
    }
}

/// Audits every task.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what Python gathers for one call")]
pub fn audit_batch(
    py: Python<'_>,
    table: &Bound<'_, PyAny>,
    features: String,
    labels: String,
    carried: Option<Vec<String>>,
    certainty: Option<f32>,
    expected_noise: Option<f64>,
    threads: Option<i64>,
) -> PyResult<Batches> {
    // Neighbours are not part of the result.
    let options = crate::audit::options(certainty, expected_noise, 0)?;
    let columns = ColumnNames { features, labels, carried };
    run_tasks::<AuditOutput>(py, table, columns, threads, |data, progress| {
        Audit::of(&data).options(options.clone()).progress(progress).run()
    })
}

/// The classifier of a task: its class names, and the bytes of the file that `trueshot fit` writes.
struct ClassifierOutput;

impl TaskOutput for ClassifierOutput {
    type Output = (Vec<String>, Vec<u8>);

    fn fields() -> Vec<Field> {
        vec![list_of("classes", DataType::Utf8), Field::new("classifier", DataType::Binary, true)]
    }

    fn size((classes, file): &Self::Output) -> usize {
        names_size(classes).max(file.len())
    }

    fn columns(results: &[TaskResult<Self::Output>]) -> Vec<ArrayRef> {
        let classes = lists(results, StringBuilder::new(), |list, (classes, _): &Self::Output| {
            classes.iter().for_each(|class| list.append_value(class));
        });
        let mut files = BinaryBuilder::new();
        results.iter().for_each(|result| files.append_option(result.as_ref().ok().map(|(_, file)| file)));
        vec![classes, Arc::new(files.finish())]
    }
}

/// Fits a classifier to every task, as `trueshot fit` does: the audit of the support set becomes part of the file.
#[pyfunction]
pub fn fit_batch(
    py: Python<'_>,
    table: &Bound<'_, PyAny>,
    features: String,
    labels: String,
    carried: Option<Vec<String>>,
    method: &str,
    threads: Option<i64>,
) -> PyResult<Batches> {
    let method = methods::method(method).map_err(to_exception)?;
    let columns = ColumnNames { features, labels, carried };
    run_tasks::<ClassifierOutput>(py, table, columns, threads, |data, progress| {
        let audit = Audit::of(&data).progress(progress).run()?;
        let predictor = Predictor::fit(data, &method, Some(&audit))?;
        Ok((predictor.classes().to_vec(), predictor.to_bytes()))
    })
}

/// The prototypes of a task: its class names, one vector per class, and the vector to subtract from rows before they
/// are compared, which is null for methods that do not centre rows.
struct PrototypeOutput;

impl TaskOutput for PrototypeOutput {
    type Output = UncalibratedPredictor;

    fn fields() -> Vec<Field> {
        let vector = list_of("item", DataType::Float32).data_type().clone();
        vec![
            list_of("classes", DataType::Utf8),
            list_of("prototypes", vector),
            list_of("centre", DataType::Float32),
        ]
    }

    fn size(learned: &UncalibratedPredictor) -> usize {
        names_size(learned.classes()).max(learned.classes().len().saturating_mul(learned.dim()))
    }

    fn columns(results: &[TaskResult<UncalibratedPredictor>]) -> Vec<ArrayRef> {
        let prototypes = |learned: &UncalibratedPredictor| {
            learned
                .prototypes()
                .map(|prototypes| (prototypes.vectors.to_vec(), prototypes.centre.map(<[f32]>::to_vec)))
        };
        // Per task: vectors `[classes][dimensions]` and the centre. None for failed tasks.
        let per_task: Vec<_> =
            results.iter().map(|result| result.as_ref().ok().and_then(prototypes)).collect();
        let classes = lists(results, StringBuilder::new(), |list, learned: &UncalibratedPredictor| {
            learned.classes().iter().for_each(|class| list.append_value(class));
        });
        let mut vectors = ListBuilder::new(ListBuilder::new(Float32Builder::new()));
        let mut centres = ListBuilder::new(Float32Builder::new());
        for prototypes in &per_task {
            for vector in prototypes.iter().flat_map(|(vectors, _)| vectors) {
                vectors.values().values().append_slice(vector);
                vectors.values().append(true);
            }
            vectors.append(prototypes.is_some());
            let centre = prototypes.as_ref().and_then(|(_, centre)| centre.as_deref());
            centres.values().append_slice(centre.unwrap_or_default());
            centres.append(centre.is_some());
        }
        vec![classes, Arc::new(vectors.finish()), Arc::new(centres.finish())]
    }
}

/// One prototype per class of every task.
#[pyfunction]
pub fn prototypes_batch(
    py: Python<'_>,
    table: &Bound<'_, PyAny>,
    features: String,
    labels: String,
    carried: Option<Vec<String>>,
    method: &str,
    threads: Option<i64>,
) -> PyResult<Batches> {
    let method = methods::method(method).map_err(to_exception)?;
    let columns = ColumnNames { features, labels, carried };
    run_tasks::<PrototypeOutput>(py, table, columns, threads, |data, progress| {
        prototypes(data, &method, progress)
    })
}

/// Fits the method to a task. An audit is needed only for large support sets, of which the classifier keeps the most
/// typical items. Fails if the method does not have one prototype per class.
fn prototypes(
    data: Embeddings,
    method: &NamedMethod,
    progress: &dyn Progress,
) -> trueshot::Result<UncalibratedPredictor> {
    let audit = if is_large(data.len()) { Some(Audit::of(&data).progress(progress).run()?) } else { None };
    let learned = UncalibratedPredictor::fit(data, method, audit.as_ref())?;
    match learned.prototypes() {
        Some(_) => Ok(learned),
        None => Err(Error::NoPrototypes { method: method.label.clone() }),
    }
}
