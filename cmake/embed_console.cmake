# Writes the files of the console as bytes of a C++ source: cmake -D FOLDER=console -D OUT=console_files.cc -P embed_console.cmake
#
# @VERSION@ in index.html becomes the version, a digest of all files, under which the page finds the others: a URL's content never
# changes, and a browser may keep it for ever.
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*.html ${FOLDER}/*.css ${FOLDER}/*.js ${FOLDER}/*.svg)
list(SORT names)
set(type_of_html "text/html; charset=utf-8")
set(type_of_css "text/css; charset=utf-8")
set(type_of_js "text/javascript; charset=utf-8")
set(type_of_svg "image/svg+xml")

set(digests "")
foreach(name ${names})
  file(SHA256 ${FOLDER}/${name} digest)
  string(APPEND digests "${name} ${digest}\n")
endforeach()
string(SHA256 version "${digests}")
string(SUBSTRING ${version} 0 16 version)

set(source "#include \"server/console_files.h\"\n\n#include <array>\n\nnamespace ebb {\nnamespace {\n\n")
set(rows "")
set(number 0)
string(REPEAT "." 52 line) # of the source: 26 bytes
foreach(name ${names})
  file(READ ${FOLDER}/${name} text)
  string(REPLACE "@VERSION@" "${version}" text "${text}")
  string(HEX "${text}" bytes)
  string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
  string(REPLACE "\n" "\"\n    \"" bytes "${bytes}")
  string(REGEX MATCH "[a-z]+$" suffix ${name})
  string(APPEND source "constexpr char kFile${number}[] =\n    \"${bytes}\";\n\n")
  string(APPEND rows "    ConsoleFile{\"${name}\", \"${type_of_${suffix}}\", {kFile${number}, sizeof(kFile${number}) - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND source "constexpr std::array kFiles = {\n${rows}};\n\n}  // namespace\n\n"
  "std::span<const ConsoleFile> ConsoleFiles() { return kFiles; }\n\n"
  "std::string_view ConsoleVersion() { return \"${version}\"; }\n\n}  // namespace ebb\n")
file(WRITE ${OUT} "${source}")
