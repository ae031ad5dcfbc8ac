// Which TensorFlow this library was built for, as text in the file: it is read before the library is loaded, since another
// version's would end the process.
extern "C" __attribute__((used)) const char hopsml_tensorflow_built_for[] =
    "hopsml was built for TensorFlow " HOPSML_TENSORFLOW_VERSION;
