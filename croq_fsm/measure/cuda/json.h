// Flat JSON objects, just enough for one request and one answer per line.
#pragma once

#include <cctype>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace croq {

// A request: string, number and boolean members of one JSON object. Nested values are refused:
// nothing here needs them, and what is not parsed cannot be misread.
class Request {
 public:
  static Request parse(const std::string &line) {
    Request request;
    Cursor at{line, 0};
    at.expect('{');
    if (at.peek() != '}') {
      do {
        std::string key = at.string();
        at.expect(':');
        request.members_[key] = at.peek() == '"' ? at.string() : at.word();
      } while (at.accept(','));
    }
    at.expect('}');
    return request;
  }

  std::string text(const std::string &key, const std::string &absent) const {
    auto found = members_.find(key);
    return found == members_.end() ? absent : found->second;
  }
  long long integer(const std::string &key, long long absent) const {
    auto found = members_.find(key);
    return found == members_.end() ? absent : std::strtoll(found->second.c_str(), nullptr, 10);
  }
  double real(const std::string &key, double absent) const {
    auto found = members_.find(key);
    return found == members_.end() ? absent : std::strtod(found->second.c_str(), nullptr);
  }

 private:
  struct Cursor {
    const std::string &line;
    size_t at;

    char peek() {
      while (at < line.size() && std::isspace(static_cast<unsigned char>(line[at]))) ++at;
      return at < line.size() ? line[at] : '\0';
    }
    bool accept(char wanted) {
      if (peek() != wanted) return false;
      ++at;
      return true;
    }
    void expect(char wanted) {
      if (!accept(wanted)) throw std::invalid_argument("request is not a flat JSON object");
    }
    std::string string() {
      expect('"');
      std::string value;
      while (at < line.size() && line[at] != '"') {
        if (line[at] == '\\') ++at;  // \" and \\ are all that the parent sends
        if (at < line.size()) value += line[at++];
      }
      expect('"');
      return value;
    }
    std::string word() {
      std::string value;
      for (char c = peek(); at < line.size() && c != ',' && c != '}'; c = line[++at]) value += c;
      if (value.empty()) throw std::invalid_argument("request has a member without a value");
      return value;
    }
  };
  std::map<std::string, std::string> members_;
};

// An answer under construction. Numbers that JSON cannot carry become null.
class Answer {
 public:
  Answer &add(const char *key, const std::string &value) { return raw(key, quoted(value)); }
  Answer &add(const char *key, const char *value) { return add(key, std::string(value)); }
  Answer &add(const char *key, bool value) { return raw(key, value ? "true" : "false"); }
  Answer &add(const char *key, long long value) { return raw(key, std::to_string(value)); }
  Answer &add(const char *key, int value) { return raw(key, std::to_string(value)); }
  Answer &add(const char *key, size_t value) { return raw(key, std::to_string(value)); }
  Answer &add(const char *key, double value) { return raw(key, number(value)); }
  Answer &add(const char *key, const std::vector<double> &values) {
    std::string list;
    for (double value : values) list += (list.empty() ? "" : ",") + number(value);
    return raw(key, "[" + list + "]");
  }
  Answer &hex(const char *key, uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "%016" PRIx64, value);
    return add(key, text);
  }
  std::string line() const { return "{" + body_ + "}\n"; }

 private:
  static std::string number(double value) {
    if (!std::isfinite(value)) return "null";
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", value);
    return text;
  }
  static std::string quoted(const std::string &value) {
    std::string out = "\"";
    for (unsigned char c : value) {
      if (c == '"' || c == '\\') out += '\\';
      out += c < 0x20 || c > 0x7e ? '?' : static_cast<char>(c);
    }
    return out + "\"";
  }
  Answer &raw(const char *key, const std::string &value) {
    body_ += (body_.empty() ? "\"" : ",\"") + std::string(key) + "\":" + value;
    return *this;
  }
  std::string body_;
};

}  // namespace croq
