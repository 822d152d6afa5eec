//! `trueshot attention`: draws the attention maps of a trained TraNFS model for one episode. Start with [`run`].
//!
//! TraNFS is a transformer that computes the prototypes of the classes from a support set with wrong labels. Its tokens
//! are one class token per class and one token per support item. A map shows how much each token (row) attends to each
//! token (column) in one head of one layer. Users count layers and heads from 1, the library counts them from 0.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use trueshot::attention::{AttentionImage, AttentionMaps, Token};
use trueshot::episode::EpisodeData;
use trueshot::method::TrainedTranfs;
use trueshot::report::escaped_xml;

use crate::episode::EpisodeArgument;
use crate::messages::say;
use crate::output::write_file;
use crate::threads::Threads;

/// Draw the attention maps of a trained TraNFS model for one episode
///
/// Writes one PNG image per layer and head and one per layer for the mean over its heads, all attention weights as
/// attention.json, and index.html, which shows all maps. Rows are queries and columns are keys: class tokens first
/// (C0, C1, ..), then the items, ordered by their label. Wrongly labelled items are red; above the class token rows of the
/// last layer is the true class of every item ("-": not a class of the episode).
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot attention tranfs.safetensors test.safetensors -o attention
  trueshot attention tranfs.safetensors test.safetensors -o attention \\
      --episode 7 --noise paired=40
  trueshot attention tranfs.safetensors test.safetensors -o attention \\
      --images pictures/
  trueshot attention tranfs.safetensors test.safetensors -o maps.png \\
      --show last.mean,last.best")]
pub struct Arguments {
    /// Model file written by `trueshot train tranfs`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Embeddings file
    #[arg(value_name = "EMBEDDINGS")]
    embeddings: PathBuf,
    /// Write to this folder, created if it does not exist; with --show, to this PNG file
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Draw outliers from these embeddings of other classes [default: from classes of the embeddings that are not in the
    /// episode]
    #[arg(long, value_name = "FILE")]
    outliers: Option<PathBuf>,
    /// Show the images of DIR in index.html, if item names are paths relative to it
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Draw only these maps side by side into one PNG file, OUT: LAYER.HEAD, LAYER.mean, or LAYER.best, the head whose class
    /// tokens attend most to items that truly belong to their class; LAYER can be `last`
    #[arg(long, value_name = "LAYER.HEAD,..", value_delimiter = ',', value_parser = parse_map_selection)]
    show: Vec<MapSelection>,
    #[command(flatten)]
    which: EpisodeArgument,
    #[command(flatten)]
    threads: Threads,
}

/// A map selected with `--show`.
#[derive(Clone, Copy)]
struct MapSelection {
    /// From 1; `None` is the last layer.
    layer: Option<usize>,
    head: HeadSelection,
}

/// The attention head of a selected map.
#[derive(Clone, Copy)]
enum HeadSelection {
    /// From 1.
    Number(usize),
    /// The mean over the heads of the layer.
    Mean,
    /// The head whose class tokens attend most to items that truly belong to their class.
    Best,
}

/// Parses `LAYER.HEAD`, such as `1.2`, `3.mean` or `last.best`.
fn parse_map_selection(text: &str) -> Result<MapSelection, String> {
    let (layer, head) = text.split_once('.').ok_or("expected LAYER.HEAD such as 1.2, 3.mean or last.best")?;
    let number = |text: &str| match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a whole number of at least 1")),
    };
    let layer = if layer == "last" { None } else { Some(number(layer)?) };
    let head = match head {
        "mean" => HeadSelection::Mean,
        "best" => HeadSelection::Best,
        head => HeadSelection::Number(number(head)?),
    };
    Ok(MapSelection { layer, head })
}

/// Runs `trueshot attention`: draws the episode, runs the model on its support set, and writes the maps.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.threads.run(|| {
        let model = TrainedTranfs::open(&arguments.model)?;
        let embeddings = crate::eval::open(&arguments.embeddings, None)?;
        let outliers = arguments.outliers.as_deref().map(|path| crate::eval::open(path, None)).transpose()?;
        let (noise, drawn) = arguments.which.draw(&embeddings, outliers.as_ref())?;
        let data = EpisodeData { embeddings: &embeddings, outliers: outliers.as_ref() };
        // The episode was drawn with one noise setting, so the index of its support set is 0.
        let maps = AttentionMaps::new(&model, data, &drawn, 0)?;
        if !arguments.show.is_empty() {
            return arguments.write_selected(&maps);
        }
        arguments.write_all(&maps, &format!("Attention in episode {}, {noise}", arguments.which.index()))
    })
}

impl Arguments {
    /// Writes the maps of `--show` side by side into one image.
    fn write_selected(&self, maps: &AttentionMaps) -> anyhow::Result<()> {
        let pictures =
            self.show.iter().map(|shown| shown.picture(maps)).collect::<anyhow::Result<Vec<_>>>()?;
        let bytes = AttentionImage::beside(&pictures).context("--show names no map")?.to_png();
        trueshot::atomic::write_atomically(&self.output, |file| file.write_all(&bytes))?;
        say!("{}: {} maps", self.output.display(), pictures.len());
        Ok(())
    }

    /// Writes all maps, the weights and the page into the output folder.
    fn write_all(&self, maps: &AttentionMaps, title: &str) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.output)
            .with_context(|| format!("cannot create the folder {}", self.output.display()))?;
        let pictures = self.write_pictures(maps)?;
        write_file(&self.output.join("attention.json"), &(serde_json::to_string(maps)? + "\n"))?;
        write_file(&self.output.join("index.html"), &self.page(title, maps, &pictures))?;
        say!("wrote {} images, attention.json and index.html to {}", pictures.len(), self.output.display());
        Ok(())
    }

    /// Writes one image per layer and head, after one for the mean of each layer, and returns their file names.
    fn write_pictures(&self, maps: &AttentionMaps) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        for (layer, heads) in maps.layers.iter().enumerate() {
            // `None` is the mean over the heads.
            for head in std::iter::once(None).chain((0..heads.len()).map(Some)) {
                let head_name = head.map_or("mean".to_string(), |head| format!("head{}", head + 1));
                let name = format!("layer{}-{head_name}.png", layer + 1);
                let bytes = maps.picture(layer, head).to_png();
                trueshot::atomic::write_atomically(&self.output.join(&name), |file| file.write_all(&bytes))?;
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The HTML page: a table of the support items of each class, then all maps. `pictures` are the file names of the
    /// maps.
    fn page(&self, title: &str, maps: &AttentionMaps, pictures: &[String]) -> String {
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title><style>body{{font:16px/1.5 \
             system-ui,sans-serif;margin:2rem;background:#fff;color:#1b1f24}}img.map{{max-width:100%}}.wrong{{color:#cf222e}}\
             td,th{{padding:.2rem .8rem .2rem 0;text-align:left}}td img{{display:block;height:84px}}.item{{display:inline-block;\
             margin:0 .5rem .3rem 0;vertical-align:top}}.wrong img{{outline:3px solid}}</style><h1>{0}</h1>\n",
            escaped_xml(title)
        );
        page.push_str("<table><tr><th>class<th>items\n");
        for (class, name) in maps.tokens.iter().filter_map(class_token) {
            page.push_str(&format!("<tr><th>C{class} {}<td>", escaped_xml(name)));
            maps.tokens
                .iter()
                .filter_map(|token| self.item(token, class))
                .for_each(|item| page.push_str(&item));
            page.push('\n');
        }
        page.push_str("</table>\n");
        for name in pictures {
            page.push_str(&format!("<p><img class=\"map\" src=\"{name}\" alt=\"{name}\">\n"));
        }
        page + "</html>\n"
    }

    /// The HTML of a support item with label `class`: its image, or else its name or row; in red with its true class if
    /// the label is wrong. `None` for class tokens and for items with another label.
    fn item(&self, token: &Token, class: u32) -> Option<String> {
        let Token::Item { given, truth, row, item, wrong } = token else { return None };
        if *given != class {
            return None;
        }
        let name = item.clone().unwrap_or_else(|| format!("row {row}"));
        let shown = match self.images.as_ref().map(|folder| picture_path(folder, &name)) {
            Some(Some(path)) => {
                format!("<img src=\"{0}\" alt=\"{1}\" title=\"{1}\">", escaped_xml(&path), escaped_xml(&name))
            }
            _ => escaped_xml(&name),
        };
        let truth = truth.map_or("none".to_string(), |truth| format!("C{truth}"));
        Some(match wrong {
            true => format!("<span class=\"item wrong\">{shown} true class: {truth}</span> "),
            false => format!("<span class=\"item\">{shown}</span> "),
        })
    }
}

impl MapSelection {
    /// The image of the selected map. Fails if the model does not have this layer or head.
    fn picture(self, maps: &AttentionMaps) -> anyhow::Result<AttentionImage> {
        let layers = maps.layers.len();
        let layer = self.layer.unwrap_or(layers);
        anyhow::ensure!(layer <= layers, "--show asks for layer {layer}; the model has {layers}");
        let heads = maps.layers[layer - 1].len();
        let head = match self.head {
            HeadSelection::Mean => None,
            HeadSelection::Best => Some(maps.best_head(layer - 1)),
            HeadSelection::Number(head) => {
                anyhow::ensure!(head <= heads, "--show asks for head {head}; layer {layer} has {heads}");
                Some(head - 1)
            }
        };
        Ok(maps.picture(layer - 1, head))
    }
}

/// The index and name of the class of a class token; `None` for the token of an item.
fn class_token(token: &Token) -> Option<(u32, &str)> {
    match token {
        Token::Class { class, name } => Some((*class, name)),
        Token::Item { .. } => None,
    }
}

/// The absolute path of the image of an item, if it exists below the folder. Item names come from a file, so a name
/// such as `../secret.png` must not lead out of the folder.
fn picture_path(folder: &Path, item: &str) -> Option<String> {
    let name = Path::new(trueshot::episode::image_name(item));
    let stays_below = name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let path = folder.join(name);
    let absolute = std::fs::canonicalize(path).ok().filter(|_| stays_below)?;
    Some(absolute.display().to_string())
}
