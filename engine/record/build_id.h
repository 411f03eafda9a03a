// A name for the code that results depend on: the hash of the sources of the engine and of the
// techniques, made by build_id.cmake at build time. Compiler and optimisation level are not in it,
// because they do not change results; nor are files that only read commands and print.
#ifndef SERVELAB_RECORD_BUILD_ID_H_
#define SERVELAB_RECORD_BUILD_ID_H_

namespace servelab {

const char* build_id();  // 16 hexadecimal digits

}  // namespace servelab

#endif  // SERVELAB_RECORD_BUILD_ID_H_
