//! Build script of the extension module: the linker leaves the symbols of the Python interpreter open.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
