# Hashes SOURCES (a file with one path per line, relative to ROOT) and writes the definition of
# build_id() to OUTPUT. Run with cmake -P.
file(STRINGS "${SOURCES}" paths)
list(SORT paths)
set(all "")
foreach(path IN LISTS paths)
  file(SHA256 "${ROOT}/${path}" digest)
  string(APPEND all "${path} ${digest}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING "${id}" 0 16 id)
set(text "#include \"engine/record/build_id.h\"\n\nnamespace servelab {\n\
const char* build_id() { return \"${id}\"; }\n}  // namespace servelab\n")
file(WRITE "${OUTPUT}" "${text}")
