//! Small embeddings files of every format and variant, shared by the integration tests and the seed corpus of the fuzz
//! targets. Start with [`Sample::every_form`].
//!
//! The files are written by the crates of the formats, or byte by byte, so that readers are not tested only against this
//! project's own writers.
#![allow(dead_code)]

use trueshot::embeddings::Embeddings;

/// Rows with labels and item names, to be written in any format.
pub struct Sample {
    pub values: Vec<f32>,
    pub dim: usize,
    pub labels: Vec<String>,
    pub items: Vec<String>,
}

impl Sample {
    /// A sample whose values are exact in half precision, with five classes.
    pub fn new(rows: usize, dim: usize) -> Self {
        Sample {
            values: (0..rows * dim).map(|i| (i * 37 % 101) as f32 / 4.0 - 12.0).collect(),
            dim,
            labels: (0..rows).map(|row| ["ant", "bee", "cow", "dog", "eel"][row % 5].to_owned()).collect(),
            items: (0..rows).map(|row| format!("{}/{row}.jpg", row % 5)).collect(),
        }
    }

    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    pub fn embeddings(&self) -> Embeddings {
        Embeddings::from_rows(self.values.clone(), self.dim, self.labels.clone()).unwrap()
    }

    /// The index of every label among the sorted class names.
    pub fn numbers(&self) -> Vec<i64> {
        self.labels.iter().map(|label| i64::from(label.as_bytes()[0] - b'a')).collect()
    }

    /// Files of every format and variant, as (description, extension, bytes). Single `.npy` files are not included, because
    /// they hold either features or labels.
    pub fn every_form(&self) -> Vec<(String, &'static str, Vec<u8>)> {
        let mut forms = safetensors::forms(self);
        forms.extend(npz::forms(self));
        forms.extend(parquet::forms(self));
        forms.extend(arrow::forms(self));
        forms
    }
}

/// The values, labels and item names of embeddings as plain lists.
pub fn contents(embeddings: &Embeddings) -> (Vec<f32>, Vec<String>, Vec<Option<String>>) {
    let rows = 0..embeddings.len();
    let mut values = vec![0.0; embeddings.len() * embeddings.dim()];
    for (row, out) in values.chunks_exact_mut(embeddings.dim()).enumerate() {
        embeddings.features().decode_row(row, out);
    }
    let class = |row: usize| embeddings.classes()[embeddings.labels()[row] as usize].clone();
    let item = |row| embeddings.item(row).map(str::to_owned);
    (values, rows.clone().map(class).collect(), rows.map(item).collect())
}

/// Safetensors files, assembled byte by byte.
pub mod safetensors {
    use super::Sample;

    pub fn forms(sample: &Sample) -> Vec<(String, &'static str, Vec<u8>)> {
        let mut forms = Vec::new();
        for (name, width) in [("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8)] {
            let data: Vec<u8> = match name {
                "F32" => sample.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                "F16" => sample.values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
                "BF16" => sample.values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
                _ => sample.values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect(),
            };
            let shape = [sample.rows(), sample.dim];
            assert_eq!(data.len(), shape[0] * shape[1] * width);
            let form = format!("safetensors {}", name.to_lowercase());
            forms.push((form, "safetensors", file(sample, name, &data, true)));
        }
        let data: Vec<u8> = sample.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        forms.push(("safetensors items".into(), "safetensors", file(sample, "F32", &data, false)));
        forms
    }

    /// A file whose item names are a JSON list (`item_list`) or a pair of tensors.
    pub fn file(sample: &Sample, dtype: &str, data: &[u8], item_list: bool) -> Vec<u8> {
        let (rows, dim) = (sample.rows(), sample.dim);
        let labels: Vec<u8> = sample.numbers().iter().flat_map(|label| label.to_le_bytes()).collect();
        let mut classes = sample.labels.clone();
        classes.sort();
        classes.dedup();
        let mut notes = serde_json::json!({
            "format": "trueshot-embeddings/1",
            "classes": serde_json::to_string(&classes).unwrap(),
        });
        let text = sample.items.concat();
        let ends = sample.items.iter().scan(0, |end, item| {
            *end += item.len() as i64;
            Some(*end)
        });
        let offsets: Vec<u8> = std::iter::once(0).chain(ends).flat_map(i64::to_le_bytes).collect();
        let mut tensors =
            vec![("labels", "I64", vec![rows], &labels[..]), ("features", dtype, vec![rows, dim], data)];
        if item_list {
            notes["items"] = serde_json::to_string(&sample.items).unwrap().into();
        } else {
            tensors.insert(1, ("item_offsets", "I64", vec![rows + 1], &offsets));
            tensors.push(("items", "U8", vec![text.len()], text.as_bytes()));
        }
        assemble(notes, &tensors)
    }

    /// A file of metadata and tensors, given as (name, dtype, shape, bytes), in the given order.
    pub fn assemble(notes: serde_json::Value, tensors: &[(&str, &str, Vec<usize>, &[u8])]) -> Vec<u8> {
        let mut header = serde_json::json!({ "__metadata__": notes });
        let mut end = 0;
        for (name, dtype, shape, data) in tensors {
            let offsets = [end, end + data.len()];
            header[*name] = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
            end += data.len();
        }
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        tensors.iter().for_each(|(_, _, _, data)| bytes.extend_from_slice(data));
        bytes
    }
}

/// NumPy `.npy` files, assembled byte by byte.
pub mod npy {
    use super::Sample;

    /// A file with a header of these Python expressions.
    pub fn array(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    pub fn features(sample: &Sample) -> Vec<u8> {
        let data: Vec<u8> = sample.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        array("<f4", "False", &format!("({}, {})", sample.rows(), sample.dim), &data)
    }

    pub fn half_features(sample: &Sample) -> Vec<u8> {
        let data: Vec<u8> =
            sample.values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
        array("<f2", "False", &format!("({}, {})", sample.rows(), sample.dim), &data)
    }

    /// Features as big-endian `f64` in column-major order.
    pub fn fortran_features(sample: &Sample) -> Vec<u8> {
        let (rows, dim) = (sample.rows(), sample.dim);
        let columns = (0..dim).flat_map(|column| (0..rows).map(move |row| row * dim + column));
        let data: Vec<u8> = columns.flat_map(|index| f64::from(sample.values[index]).to_be_bytes()).collect();
        array(">f8", "True", &format!("({rows}, {dim})"), &data)
    }

    /// Labels as UTF-32 strings of four characters.
    pub fn labels(sample: &Sample) -> Vec<u8> {
        let wide = |label: &String| {
            let mut codes: Vec<u32> = label.chars().map(u32::from).collect();
            codes.resize(4, 0);
            codes
        };
        let data: Vec<u8> = sample.labels.iter().flat_map(wide).flat_map(u32::to_le_bytes).collect();
        array("<U4", "False", &format!("({},)", sample.rows()), &data)
    }

    /// Texts as byte strings, padded with zeros.
    pub fn strings(words: &[String]) -> Vec<u8> {
        let width = words.iter().map(String::len).max().unwrap_or(1);
        let padded = |word: &String| {
            let mut bytes = word.clone().into_bytes();
            bytes.resize(width, 0);
            bytes
        };
        let data: Vec<u8> = words.iter().flat_map(padded).collect();
        array(&format!("|S{width}"), "False", &format!("({},)", words.len()), &data)
    }
}

/// NumPy `.npz` archives.
pub mod npz {
    use std::io::{Cursor, Write};

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::{Sample, npy};

    pub fn archive(members: &[(&str, Vec<u8>)], deflate: bool) -> Vec<u8> {
        let method = if deflate { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in members {
            zip.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    pub fn forms(sample: &Sample) -> Vec<(String, &'static str, Vec<u8>)> {
        let mut forms = Vec::new();
        for deflate in [false, true] {
            let packing = if deflate { "deflated" } else { "stored" };
            for (kind, features) in [
                ("f32", npy::features(sample)),
                ("f16", npy::half_features(sample)),
                ("fortran", npy::fortran_features(sample)),
            ] {
                let members = [
                    ("x.npy", features),
                    ("y.npy", npy::labels(sample)),
                    ("items.npy", npy::strings(&sample.items)),
                ];
                forms.push((format!("npz items {packing} {kind}"), "npz", archive(&members, deflate)));
            }
        }
        forms
    }
}

/// Arrow columns of all supported types, for Parquet and Arrow files.
pub mod columns {
    use std::sync::Arc;

    use arrow_array::types::{Float32Type, Int8Type};
    use arrow_array::{
        ArrayRef, DictionaryArray, FixedSizeListArray, Float16Array, Float32Array, Float64Array,
        GenericListViewArray, Int32Array, LargeListArray, LargeStringArray, ListArray, RecordBatch,
        StringArray, StringViewArray,
    };
    use arrow_buffer::{OffsetBuffer, ScalarBuffer};
    use arrow_schema::Field;

    use super::Sample;

    pub fn values(sample: &Sample, precision: &str) -> ArrayRef {
        match precision {
            "f16" => Arc::new(Float16Array::from_iter_values(
                sample.values.iter().map(|&v| half::f16::from_f32(v)),
            )),
            "f32" => Arc::new(Float32Array::from(sample.values.clone())),
            _ => Arc::new(Float64Array::from_iter_values(sample.values.iter().map(|&v| f64::from(v)))),
        }
    }

    pub fn features(sample: &Sample, precision: &str, kind: &str) -> ArrayRef {
        let values = values(sample, precision);
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        let (rows, dim) = (sample.rows(), sample.dim);
        match kind {
            "list" => {
                Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(vec![dim; rows]), values, None))
            }
            "large list" => {
                Arc::new(LargeListArray::new(item, OffsetBuffer::from_lengths(vec![dim; rows]), values, None))
            }
            "fixed" => Arc::new(FixedSizeListArray::new(item, dim as i32, values, None)),
            _ => {
                let offsets: ScalarBuffer<i32> = (0..rows as i32).map(|row| row * dim as i32).collect();
                let sizes: ScalarBuffer<i32> = (0..rows).map(|_| dim as i32).collect();
                Arc::new(GenericListViewArray::<i32>::new(item, offsets, sizes, values, None))
            }
        }
    }

    pub fn labels(sample: &Sample, kind: &str) -> ArrayRef {
        let texts = || sample.labels.iter().map(String::as_str);
        match kind {
            "utf8" => Arc::new(StringArray::from_iter_values(texts())),
            "large utf8" => Arc::new(LargeStringArray::from_iter_values(texts())),
            "view" => Arc::new(StringViewArray::from_iter_values(texts())),
            _ => Arc::new(DictionaryArray::<Int8Type>::from_iter(texts())),
        }
    }

    pub fn batch(sample: &Sample, precision: &str, list: &str, label: &str) -> RecordBatch {
        let items = Arc::new(StringArray::from_iter_values(&sample.items)) as ArrayRef;
        let other = Arc::new(Int32Array::from_iter_values(0..sample.rows() as i32)) as ArrayRef;
        let columns = [
            ("extra", other),
            ("label", labels(sample, label)),
            ("path", items),
            ("embedding", features(sample, precision, list)),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// A batch of four rows: three lists of two numbers, and the given list as row 3.
    pub fn with_row_three(row: Option<Vec<Option<f32>>>) -> RecordBatch {
        let pair = || Some(vec![Some(1.0), Some(2.0)]);
        let lists = ListArray::from_iter_primitive::<Float32Type, _, _>([pair(), pair(), pair(), row]);
        let labels = Int32Array::from(vec![0, 1, 0, 1]);
        let columns = [("x", Arc::new(lists) as ArrayRef), ("y", Arc::new(labels) as ArrayRef)];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap()
    }
}

/// Parquet files.
pub mod parquet {
    use arrow_array::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, Encoding};
    use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

    use super::{Sample, columns};

    pub fn file(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        bytes
    }

    pub fn forms(sample: &Sample) -> Vec<(String, &'static str, Vec<u8>)> {
        let mut forms = Vec::new();
        let mut add = |form: String, batch: &RecordBatch, properties: WriterProperties| {
            forms.push((format!("parquet items {form}"), "parquet", file(batch, properties)));
        };
        for (name, codec) in [
            ("plain", Compression::UNCOMPRESSED),
            ("snappy", Compression::SNAPPY),
            ("gzip", Compression::GZIP(Default::default())),
            ("lz4", Compression::LZ4),
            ("lz4 raw", Compression::LZ4_RAW),
            ("zstd", Compression::ZSTD(Default::default())),
        ] {
            let (one, two) = (
                columns::batch(sample, "f32", "list", "utf8"),
                columns::batch(sample, "f16", "fixed", "dictionary"),
            );
            let properties =
                || WriterProperties::builder().set_compression(codec).set_max_row_group_row_count(Some(16));
            add(format!("{name} f32"), &one, properties().build());
            let second =
                properties().set_writer_version(WriterVersion::PARQUET_2_0).set_data_page_row_count_limit(7);
            add(format!("{name} f16"), &two, second.set_write_batch_size(7).build());
        }
        let batch = columns::batch(sample, "f64", "large list", "large utf8");
        add("f64".into(), &batch, WriterProperties::default());
        let batch = columns::batch(sample, "f32", "list", "view");
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let properties = delta(Encoding::DELTA_LENGTH_BYTE_ARRAY).set_writer_version(version);
            add(format!("delta lengths {version:?} f32"), &batch, properties.build());
        }
        forms
    }

    fn delta(encoding: Encoding) -> WriterPropertiesBuilder {
        WriterProperties::builder()
            .set_column_dictionary_enabled("label".into(), false)
            .set_column_encoding("label".into(), encoding)
    }

    /// A file whose labels are encoded as `DELTA_BYTE_ARRAY`, which readers must refuse.
    pub fn delta_strings(sample: &Sample) -> Vec<u8> {
        let batch = columns::batch(sample, "f32", "list", "view");
        file(&batch, delta(Encoding::DELTA_BYTE_ARRAY).build())
    }

    pub fn ragged() -> Vec<u8> {
        file(&columns::with_row_three(Some(vec![Some(1.0); 3])), WriterProperties::default())
    }

    pub fn with_null_row() -> Vec<u8> {
        file(&columns::with_row_three(None), WriterProperties::default())
    }

    pub fn with_null_value() -> Vec<u8> {
        file(&columns::with_row_three(Some(vec![Some(1.0), None])), WriterProperties::default())
    }
}

/// Arrow IPC files and streams.
pub mod arrow {
    use arrow_array::RecordBatch;
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    use super::{Sample, columns};

    pub fn file(batches: &[RecordBatch], compression: Option<CompressionType>) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    pub fn stream(batches: &[RecordBatch], compression: Option<CompressionType>) -> Vec<u8> {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut writer =
            StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    }

    pub fn forms(sample: &Sample) -> Vec<(String, &'static str, Vec<u8>)> {
        let mut forms = Vec::new();
        for (packing, compression) in [
            ("plain", None),
            ("lz4", Some(CompressionType::LZ4_FRAME)),
            ("zstd", Some(CompressionType::ZSTD)),
        ] {
            for (precision, list, label) in [
                ("f32", "list", "utf8"),
                ("f32", "fixed", "dictionary"),
                ("f16", "view", "view"),
                ("f64", "large list", "large utf8"),
            ] {
                let batch = columns::batch(sample, precision, list, label);
                let form = format!("items {packing} {precision} {list} {label}");
                forms.push((
                    format!("arrow file {form}"),
                    "arrow",
                    file(std::slice::from_ref(&batch), compression),
                ));
                let halves = [
                    batch.slice(0, sample.rows() / 2),
                    batch.slice(sample.rows() / 2, sample.rows() - sample.rows() / 2),
                ];
                forms.push((format!("arrow stream {form}"), "arrow", stream(&halves, compression)));
            }
        }
        forms
    }

    pub fn ragged() -> Vec<u8> {
        file(&[columns::with_row_three(Some(vec![Some(1.0); 3]))], None)
    }
}
