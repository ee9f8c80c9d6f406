// The conversation with the parent: one JSON line on stdin, one JSON line on descriptor 3.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <string>

#include "json.h"

namespace croq {

class Channel {
 public:
  // Call before anything opens files: an unopened descriptor 3 would become somebody else's.
  Channel() : fd_(fcntl(kAnswers, F_GETFD) == -1 ? -1 : kAnswers) {
    if (fd_ != -1) fcntl(fd_, F_SETFD, FD_CLOEXEC);
  }

  // Serve requests until stdin ends or `serve` asks to stop by throwing.
  int run(const std::function<Answer(const Request &)> &serve) const {
    std::string line;
    while (std::getline(std::cin, line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      try {
        send(serve(Request::parse(line)));
      } catch (const std::exception &error) {
        // A device fault poisons the context: say what happened, then end the process.
        send(Answer().add("ok", false).add("error", error.what()));
        return 1;
      }
    }
    return 0;
  }

 private:
  static constexpr int kAnswers = 3;

  void send(const Answer &answer) const {
    const std::string line = answer.line();
    size_t done = 0;
    while (fd_ != -1 && done < line.size()) {
      const ssize_t wrote = write(fd_, line.data() + done, line.size() - done);
      if (wrote <= 0) _exit(2);
      done += static_cast<size_t>(wrote);
    }
  }

  int fd_;
};

}  // namespace croq
