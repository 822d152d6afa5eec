//! Build script of the extension module: the symbols of the Python interpreter are resolved when it is loaded.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
