// The version of TensorFlow for which this library was built, as text in the file: it is read before the library is
// loaded, since loading one for another version would end the process.
extern "C" __attribute__((used)) const char hopsml_tensorflow_built_for[] =
    "hopsml was built for TensorFlow " HOPSML_TENSORFLOW_VERSION;
