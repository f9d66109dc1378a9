# Five verbs, so that no folder sets a compiler flag of its own.
#
#   ebb_library(name SOURCES a.cc ... LINKS dep ... APART COLD)   APART: files that cannot be compiled together, as their names collide;
#                                                                 COLD: little time is spent in it, so that clang's sanitizer builds do not optimise it
#   ebb_binary(name SOURCES main.cc ... LINKS dep ...)            goes to EBB_BIN_DIR
#   ebb_test(name SOURCES a_test.cc ... LINKS dep ... LABEL unit) each TEST is a ctest of its own: `unit/Suite.Sentence`
#   ebb_test_objects(name SOURCES ... LINKS dep ...)              tests that two programs run: ebb_test(... OBJECTS name LABEL unit)
#   ebb_fuzz(name SOURCES a_fuzz.cc LINKS dep ... BESIDE dep ...) libFuzzer target, only with EBB_FUZZ; LINKS guide it, BESIDE do not

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(EBB_BIN_DIR "${CMAKE_BINARY_DIR}/bin" CACHE PATH "Where ebbd, ebb and ebb-lab are put")

find_program(EBB_CCACHE ccache)
if(EBB_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache must be told before it keeps what was compiled behind precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${EBB_CCACHE})
endif()

find_program(EBB_LLD ld.lld) # a quarter of the time that ld takes; what is shipped is ld's

# The sanitizer is set for every target, generated code included, so that no object mixes with another kind.
if(EBB_SANITIZE)
  add_compile_options(-fsanitize=${EBB_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${EBB_SANITIZE})
  if(EBB_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
  add_compile_definitions(EBB_SANITIZED) # clang and g++ have names of their own for it, and tests want to know
endif()

# What is shipped checks what a program can at small cost: the bounds of the standard library's containers, what functions of libc are
# told to write, returns and jumps (docs/explanation/security.md). All of it is in every build, but for libc's checks, which need an
# optimiser and would hide from a sanitizer what they find.
add_compile_definitions(_GLIBCXX_ASSERTIONS)
add_compile_options(-fstack-protector-strong -fstack-clash-protection)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options(-fcf-protection)
endif()
if(NOT EBB_SANITIZE)
  add_compile_definitions("$<$<AND:$<CONFIG:Release>,$<NOT:$<BOOL:$<TARGET_PROPERTY:EBB_UNFORTIFIED>>>>:_FORTIFY_SOURCE=2>")
endif()

# Results must not depend on which multiply-add a compiler fuses (docs/explanation/determinism.md).
add_compile_options(-ffp-contract=off)

add_library(ebb_flags INTERFACE)
target_compile_options(ebb_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wformat-security -Werror)
# g++ 12 sees uninitialised members in moved-from optionals, variants and vectors that are none; the sanitizers look for real ones.
target_compile_options(ebb_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
# clang sees g++ 12's <algorithm> call what C++17 deprecates.
target_compile_options(ebb_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
target_include_directories(ebb_flags INTERFACE ${PROJECT_SOURCE_DIR})

# Sanitizer builds read the libraries' headers once. Others do not, so that a file that forgets to include what it uses is
# found there, with -DEBB_UNITY=OFF.
if(EBB_SANITIZE)
  add_compile_options(-pthread $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  add_compile_definitions(GTEST_HAS_PTHREAD=1) # as GTest's own target says, which not all of ours link
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers.cc CONTENT "")
  foreach(headers ebb_headers ebb_unoptimised_headers)
    add_library(${headers} OBJECT ${CMAKE_BINARY_DIR}/headers.cc)
    target_link_libraries(${headers} PRIVATE ebb_flags gRPC::grpc++ protobuf::libprotobuf GTest::gmock)
    target_precompile_headers(${headers} PRIVATE
      <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <filesystem> <fstream> <functional> <future> <map> <memory> <mutex>
      <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant>
      <vector>
      <absl/container/flat_hash_map.h> <absl/functional/any_invocable.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
      <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/synchronization/mutex.h>
      <absl/time/time.h> <absl/types/span.h>
      <gmock/gmock.h> <google/protobuf/struct.pb.h> <grpcpp/grpcpp.h> <gtest/gtest.h> <nlohmann/json.hpp>)
  endforeach()
  target_compile_options(ebb_unoptimised_headers PRIVATE -O0)
endif()

# With EBB_SANITIZE, compiles a target behind the headers of another that has the same options.
function(ebb_precompiled name headers)
  if(EBB_SANITIZE)
    target_precompile_headers(${name} REUSE_FROM ${headers})
  endif()
endfunction()

# What most files spend is the reading of the same headers and the same templates again: files of a target are compiled several at a
# time, which halves a build from nothing. Whoever changes one file often turns it off (-DEBB_UNITY=OFF), and finds there, too, the
# file that forgets to include what it uses.
option(EBB_UNITY "Compile the files of a target together, some at a time" ON)
function(ebb_together name)
  if(EBB_UNITY)
    # g++ takes a file that is included for a header, in which a member of an unnamed type would be a mistake.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  endif()
endfunction()

function(ebb_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "APART;COLD" "" "SOURCES;LINKS")
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ebb_flags PUBLIC ${arg_LINKS})
  if(arg_COLD AND EBB_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang") # g++ -O0 warns of ends that are never reached
    target_compile_options(${name} PRIVATE -O0)
    ebb_precompiled(${name} ebb_unoptimised_headers)
  else()
    ebb_precompiled(${name} ebb_headers)
  endif()
  if(NOT arg_APART)
    ebb_together(${name})
  endif()
endfunction()

function(ebb_binary name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ebb_flags ${arg_LINKS})
  ebb_together(${name})
  target_link_options(${name} PRIVATE -Wl,-z,relro,-z,now)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${EBB_BIN_DIR})
endfunction()

include(GoogleTest)
function(ebb_test_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC ebb_flags ${arg_LINKS} GTest::gmock)
  ebb_precompiled(${name} ebb_headers)
  ebb_together(${name})
endfunction()

function(ebb_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;OBJECTS" "SOURCES;LINKS")
  if(arg_OBJECTS)
    list(APPEND arg_SOURCES $<TARGET_OBJECTS:${arg_OBJECTS}>)
    list(APPEND arg_LINKS $<TARGET_PROPERTY:${arg_OBJECTS},INTERFACE_LINK_LIBRARIES>)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE ebb_flags ${arg_LINKS} GTest::gmock_main)
  if(EBB_LLD)
    target_link_options(${name} PRIVATE -fuse-ld=lld)
  endif()
  ebb_together(${name})
  if(arg_LABEL MATCHES "unit|integration") # what they say themselves is short, and optimising it takes most of the build
    target_compile_options(${name} PRIVATE -O0)
    set_target_properties(${name} PROPERTIES EBB_UNFORTIFIED ON)
    ebb_precompiled(${name} ebb_unoptimised_headers)
  else()
    ebb_precompiled(${name} ebb_headers)
  endif()
  if(EBB_SANITIZE STREQUAL "thread")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/tsan_grpc.cc)
    target_link_libraries(${name} PRIVATE gRPC::grpc++)
  endif()
  if(NOT TARGET ebb_${arg_LABEL}_tests)
    add_custom_target(ebb_${arg_LABEL}_tests)  # all of a label, and nothing else of the tree
  endif()
  add_dependencies(ebb_${arg_LABEL}_tests ${name})
  gtest_discover_tests(${name} TEST_PREFIX "${arg_LABEL}/" DISCOVERY_TIMEOUT 120 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    PROPERTIES LABELS ${arg_LABEL} TIMEOUT 600)
endfunction()

# Parsers inside a library of which no more guides the fuzzer; called where the library is.
function(ebb_fuzzed)
  if(EBB_FUZZ)
    set_source_files_properties(${ARGV} PROPERTIES COMPILE_OPTIONS -fsanitize=fuzzer-no-link SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

function(ebb_fuzz name)
  if(NOT EBB_FUZZ)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS;BESIDE")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ebb_flags ${arg_LINKS} ${arg_BESIDE})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  foreach(target ${name} ${arg_LINKS}) # the parsers guide the fuzzer; all else of the build runs undisturbed
    get_target_property(imported ${target} IMPORTED)
    if(NOT imported)
      target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
      set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()
